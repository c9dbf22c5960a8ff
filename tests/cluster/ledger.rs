//! The ledger of a receiver that cannot refuse, as people see it: the condition, the Event, the metric, and `fencedlock ledger` with the rights
//! that docs/operation-ledger.md gives it.

use std::process::Command;

use crate::{
    pg::{Db, said},
    postgres::boundary,
    support::{Lab, lab::condition_of, lease::at},
};
use fencedlock::api::{Verdict, WriteBoundary, conditions::boundary as on_boundary};
use serde_json::{Value, json};

fn provider() -> Value {
    json!({"lockRef": {"name": "a"}, "type": "External", "proof": {"interval": "10s", "maxAge": "30s"},
        "riskAcceptance": {"covers": ["CannotEnforce"], "acceptedBy": "payments-oncall", "reason": "the provider has no fencing",
                           "expires": "2040-12-31T00:00:00Z"},
        "external": {"receiver": "payments.example/charges", "idempotencyKey": {"template": "{workItem}", "ttl": "24h"},
                     "ledger": {"connection": {"secretKeyRef": {"name": "db", "key": "url"}}, "schema": "public", "table": "charges", "unknownAfter": "1s"}}})
}

impl Lab {
    async fn until_reconciled(&self, status: &str, reason: &str) -> WriteBoundary {
        let is = |b: Option<&WriteBoundary>| {
            let status_of = b.and_then(|b| b.status.as_ref());
            let found = status_of.and_then(|s| s.conditions.iter().find(|c| c.type_ == on_boundary::RECONCILED));
            found.is_some_and(|c| c.status == status && c.reason == reason)
        };
        self.until_boundary("provider", &format!("Reconciled={status} {reason}"), is).await
    }

    /// `fencedlock ledger` as somebody on call, with what the documentation says is needed.
    fn ledger(&self, url: Option<&str>, args: &[&str]) -> (i32, String) {
        let kubeconfig = self.kubeconfig_of("on-call", || {
            let namespace = &self.namespace;
            self.plane.kubectl(&["create", "serviceaccount", "on-call", "-n", namespace], "");
            let rule = ["--verb=get,list", "--resource=fencedlocks.fencedlock.dev,writeboundaries.fencedlock.dev"];
            self.plane.kubectl(&[&["create", "role", "looks", "-n", namespace][..], &rule].concat(), "");
            let user = format!("--serviceaccount={namespace}:on-call");
            self.plane.kubectl(&["create", "rolebinding", "looks", "--role=looks", &user, "-n", namespace], "");
        });
        let mut command = Command::new(env!("CARGO_BIN_EXE_fencedlock"));
        command.arg("ledger").args(args).env("KUBECONFIG", kubeconfig).env("USER", "on-call");
        if let Some(url) = url {
            command.env("FENCEDLOCK_DATABASE_URL", url);
        }
        let output = command.output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
    }
}

/// From the manifest to the settlement: what `print` prints is applied, a charge is left without an answer, somebody is told and settles it.
#[tokio::test(flavor = "multi_thread")]
async fn an_outcome_that_stays_unknown_is_told_listed_and_settled() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let manifest = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "WriteBoundary",
        "metadata": {"name": "provider", "namespace": lab.namespace}, "spec": provider()});
    let file = std::env::temp_dir().join(format!("fencedlock-ledger-{}.yaml", lab.namespace));
    std::fs::write(&file, manifest.to_string()).unwrap();
    let people = format!("people_{}", db.name);
    let path = file.to_str().unwrap();
    let roles = ["--writer-role", &db.writer, "--settler-role", &people, "--operator-role", &db.operator];
    let (code, script) = lab.ledger(None, &[&["print", path][..], &roles].concat());
    assert_eq!(code, 0, "{script}");
    let owner = &db.owner;
    let setup = format!("create role {people} login password '{people}'; grant create on schema public to {owner}; set role {owner}");
    db.admin.batch_execute(&setup).await.unwrap();
    db.admin.batch_execute(&script).await.unwrap();
    db.admin.batch_execute("reset role").await.unwrap();

    // The ledger is declared, and no guard is on its table: that is said first.
    lab.share_secret(&db).await;
    let operator = lab.operator_slow().await;
    lab.declare_boundary("provider", provider()).await;
    lab.declare_spec(
        "a",
        json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "a"}},
        "replay": "Ledger", "writeBoundaries": ["db", "provider"]}),
    )
    .await;
    lab.until_reconciled("False", "LedgerNotFenced").await;
    let mut guard = boundary(&db, "Enforce");
    guard["postgres"]["tables"] = json!([{"schema": "public", "name": "t"}, {"schema": "public", "name": "charges"}]);
    lab.declare_boundary("db", guard).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    lab.until_reconciled("True", "Reconciled").await;
    let status = lab.until("a", "RiskAccepted", |s| s.verdict == Some(Verdict::RiskAccepted)).await;
    let message = condition_of(status.status.as_ref().unwrap(), "Compliant").message;
    assert!(message.contains("proven: \"db\""), "{message}");

    // A worker asks the provider and never learns what became of it.
    let worker = db.claiming(&lab.claim(1, "x")).await;
    assert_eq!(said(&worker, "select charges_begin('invoice-17'); select charges_sent('invoice-17', 1)").await, "ok");
    let told = lab.until_reconciled("False", "OutcomesUnknown").await;
    let told = told.status.unwrap().conditions.into_iter().find(|c| c.type_ == on_boundary::RECONCILED).unwrap().message;
    assert!(told.contains("1 operation in ledger public.charges has an unknown outcome for longer than 1s, \"invoice-17\""), "{told}");
    assert!(lab.until_event("OutcomesUnknown", "provider").await.contains("invoice-17"));
    let (_, metrics) = crate::serving::get(&operator, "/metrics").await;
    assert!(metrics.contains("fencedlock_operations_unreconciled{reason=\"OutcomesUnknown\"} 1"), "{metrics}");

    let url = db.url(&people);
    let (lab_ns, at_lock) = (lab.namespace.clone(), ["a", "-n"]);
    let with = |first: &'static str, more: &[&'static str]| {
        [&[first][..], &at_lock, &[lab_ns.as_str()], more].concat().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let run = |url: Option<&str>, args: Vec<String>| lab.ledger(url, &args.iter().map(String::as_str).collect::<Vec<_>>());
    let (code, told) = run(None, with("list", &[]));
    assert!(code == 2 && told.contains("set FENCEDLOCK_DATABASE_URL"), "{told}");
    let (code, told) = run(Some(&url), with("list", &[]));
    assert!(code == 1 && told.contains("invoice-17") && told.contains("outcome unknown"), "{told}");
    let settle: [&'static str; 7] = ["invoice-17", "--attempt", "1", "--effect", "happened", "--reason", "it is in the provider's list"];
    let (code, told) = run(Some(&url), with("settle", &settle));
    assert!(code == 2 && told.contains("the present owner's, which may be at it"), "{told}");
    let (code, told) = run(Some(&url), with("settle", &[&settle[..], &["--under-way"]].concat()));
    assert!(code == 0 && told.contains("attempt 1 at invoice-17: happened, says on-call: it is in the provider's list"), "{told}");
    let (code, told) = run(Some(&url), with("settle", &["invoice-18", "--attempt", "1", "--effect", "absent", "--reason", "x"]));
    assert!(code == 2 && told.contains("there is no attempt 1 at invoice-18"), "{told}");
    let (code, told) = run(Some(&url), with("list", &[]));
    assert_eq!((code, told.as_str()), (0, "nothing to look at\n"));
    let (code, told) = run(Some(&url), with("list", &["--all", "--output", "json"]));
    let shown: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((code, &shown["operations"][0]["effect"]), (0, &json!("happened")));
    assert!(shown["operations"][0]["settledBy"].as_str().unwrap().contains("on-call"), "{told}");
    lab.until_reconciled("True", "Reconciled").await;
    assert!(lab.until_event("Reconciled", "provider").await.contains("no operation"));

    // What cannot be read is said, and nothing is claimed of it.
    db.admin.batch_execute("drop view charges_repeated").await.unwrap();
    let unread = lab.until_reconciled("Unknown", "LedgerUnread").await;
    assert!(format!("{:?}", unread.status).contains("charges_repeated"), "{:?}", unread.status);
    std::fs::remove_file(file).unwrap();
}
