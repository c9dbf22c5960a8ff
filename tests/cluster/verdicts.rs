//! What people see: the examples' verdicts, conditions, Events, columns, kstatus, and that nothing is written without a change.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use crate::support::{
    Lab,
    lab::{LIMIT, condition, has},
    lease::at,
    plane::tool,
};
use fencedlock::api::{
    FencedLock, Verdict,
    conditions::{boundary as on_boundary, find, lock as on},
};
use k8s_openapi::{api::events::v1::Event, jiff::Timestamp};
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
    runtime::wait::await_condition,
};
use serde_json::json;

/// The examples get the verdicts that their comments promise, and `fencedlock audit` says the same without a cluster.
#[tokio::test]
async fn the_examples_have_the_verdicts_that_the_audit_predicts() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    lab.plane.kubectl(&["apply", "-n", &lab.namespace, "-f", examples], "");
    let audit = Command::new(env!("CARGO_BIN_EXE_fencedlock")).args(["audit", examples, "--output", "json"]).output().unwrap();
    assert_eq!(audit.status.code(), Some(1), "the examples hold findings on purpose");
    let audit: serde_json::Value = serde_json::from_slice(&audit.stdout).unwrap();
    let audited = audit["locks"].as_array().unwrap();
    // Two are in folders of their own: one needs the guard's policies, the other a ledger.
    let applied: Vec<_> = audited.iter().filter(|lock| lock["name"] != "web-controller" && lock["name"] != "payments").collect();
    assert_eq!((audited.len(), applied.len()), (8, 6));
    for lock in applied {
        let name = lock["name"].as_str().unwrap();
        let seen = lab.until(name, "a verdict", |s| s.verdict.is_some() && s.reason.is_some()).await.status.unwrap();
        assert_eq!(json!(seen.verdict), lock["verdict"], "{name}");
        assert_eq!(json!(seen.reason), lock["reason"], "{name}");
    }
    let screen = lab.plane.kubectl(&["get", "fencedlocks", "-n", &lab.namespace], "");
    let header: Vec<_> = screen.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["NAME", "CLASS", "VERDICT", "EPOCH", "BOUNDARIES", "PROVEN", "HOLDER", "AGE"]);
    let story = Command::new(env!("CARGO_BIN_EXE_fencedlock"))
        .args(["status", "card-charges", "--namespace", &lab.namespace])
        .env("KUBECONFIG", &lab.plane.kubeconfig)
        .output()
        .unwrap();
    let story = String::from_utf8(story.stdout).unwrap();
    for wanted in ["card-charges", "RiskAccepted", "payments-oncall", "card-provider", "VerdictChanged"] {
        assert!(story.contains(wanted), "{wanted:?} is missing in\n{story}");
    }
}

/// An acceptance expires by itself: nothing happens, and the verdict changes. Whoever answers for it is warned before.
#[tokio::test]
async fn an_acceptance_expires_by_itself() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    let expires = Timestamp::from_second(Timestamp::now().as_second() + 10).unwrap();
    lab.declare_boundary(
        "mail",
        json!({"lockRef": {"name": "a"}, "type": "External", "external": {"receiver": "smtp.example"},
            "riskAcceptance": {"covers": ["CannotEnforce"], "acceptedBy": "mail-oncall", "reason": "r", "expires": expires.to_string()}}),
    )
    .await;
    lab.declare_spec(
        "a",
        json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "a"}}, "writeBoundaries": ["mail"]}),
    )
    .await;
    let accepted = lab.until("a", "RiskAccepted", |s| s.verdict == Some(Verdict::RiskAccepted)).await;
    assert_eq!(condition(&accepted, on::COMPLIANT).status, "True");
    assert_eq!(condition(&accepted, on::BOUNDARY_ENFORCED).status, "False", "accepted is not enforced");
    let lasts = |reason: &'static str| {
        move |b: Option<&fencedlock::api::WriteBoundary>| {
            let condition = b.and_then(|b| b.status.as_ref()).and_then(|s| find(&s.conditions, on_boundary::ACCEPTANCE_LASTS));
            condition.is_some_and(|c| c.reason == reason && c.status == if reason == "RiskAccepted" { "True" } else { "False" })
        }
    };
    lab.until_boundary("mail", "the warning", lasts("RiskAcceptanceExpiresSoon")).await;
    assert!(lab.until_event("RiskAcceptanceExpiresSoon", "mail").await.contains("mail-oncall"));
    // One that ends in many thousand years is no reason for a timer to give up.
    lab.declare_boundary(
        "fax",
        json!({"lockRef": {"name": "b"}, "type": "External", "external": {"receiver": "fax.example"},
            "riskAcceptance": {"covers": ["CannotEnforce"], "acceptedBy": "fax-oncall", "reason": "r", "expires": "9998-12-30T00:00:00Z"}}),
    )
    .await;
    lab.declare_spec(
        "b",
        json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "b"}}, "writeBoundaries": ["fax"]}),
    )
    .await;
    lab.until("b", "RiskAccepted", |s| s.verdict == Some(Verdict::RiskAccepted)).await;
    lab.until_boundary("fax", "that it lasts", lasts("RiskAccepted")).await;
    let expired = lab.until("a", "the expiry", |s| s.reason.as_deref() == Some("RiskAcceptanceExpired")).await;
    assert_eq!(condition(&expired, on::COMPLIANT).status, "False");
    let shown = |b: Option<&fencedlock::api::WriteBoundary>| {
        b.and_then(|b| b.status.as_ref()).is_some_and(|s| s.reason.as_deref() == Some("RiskAcceptanceExpired"))
    };
    lab.until_boundary("mail", "the expiry", shown).await;
    lab.until_boundary("mail", "the expiry", lasts("RiskAcceptanceExpired")).await;
}

/// Events tell of changes, once each: verdicts, ownership, and a class that was lowered.
#[tokio::test]
async fn events_tell_of_changes() {
    let lab = Lab::new().await;
    let _operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    lab.until("a", "a verdict", |s| s.verdict.is_some()).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    lab.locks().patch("a", &PatchParams::default(), &Patch::Merge(json!({"spec": {"class": "EfficiencyOnly"}}))).await.unwrap();
    lab.until("a", "NotRequired", |s| s.verdict == Some(Verdict::NotRequired)).await;
    let events = Api::<Event>::namespaced(lab.admin.clone(), &lab.namespace);
    let about = ListParams::default().fields("regarding.name=a,regarding.kind=FencedLock");
    let wanted = ["ClassDowngraded", "EpochActivated", "OwnershipChanged", "VerdictChanged", "VerdictChanged"];
    // Events are written in the background: wait for the last one by its name.
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let list = events.list(&about).await.unwrap();
        let mut reasons: Vec<_> = list.items.iter().map(|e| e.reason.clone().unwrap()).collect();
        reasons.sort();
        if reasons == wanted {
            let downgrade = list.items.iter().find(|e| e.reason.as_deref() == Some("ClassDowngraded")).unwrap();
            assert_eq!(downgrade.type_.as_deref(), Some("Warning"));
            break;
        }
        assert!(reasons.len() < wanted.len() && tokio::time::Instant::now() < deadline, "{reasons:?}");
    }
}

fn kstatus(object: &FencedLock) -> serde_json::Value {
    let mut object = serde_json::to_value(object).unwrap();
    object["apiVersion"] = json!("fencedlock.dev/v1alpha1");
    object["kind"] = json!("FencedLock");
    let mut child = Command::new(tool("kstatus")).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(object.to_string().as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap()
}

/// As Helm 4 and Flux judge it, with their library: without an operator they wait; a finding never blocks; `rollout: Block`
/// fails after its 60 s.
#[tokio::test]
async fn a_finding_blocks_a_rollout_only_when_it_is_asked_to() {
    let lab = Lab::new().await;
    lab.declare("report", "CorrectnessCritical").await;
    let nobody = lab.locks().get("report").await.unwrap();
    assert_eq!(kstatus(&nobody)["status"], "InProgress", "no operator has looked: {:?}", nobody.status);
    let _operator = lab.operator().await;
    let reported = lab.until("report", "Unenforced", |s| s.verdict == Some(Verdict::Unenforced)).await;
    assert_eq!(kstatus(&reported)["status"], "Current", "a finding never blocks");

    let block = json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "b"}}, "rollout": "Block"});
    lab.declare_spec("block", block).await;
    let waiting = lab.until("block", "Stalled=False", |s| has(s, on::STALLED, "False", "Waiting")).await;
    assert_eq!(kstatus(&waiting)["status"], "InProgress");
    let stalled = |lock: Option<&FencedLock>| {
        lock.and_then(|l| l.status.as_ref()).is_some_and(|s| has(s, on::STALLED, "True", "NoBoundaryRegistered"))
    };
    let failed =
        tokio::time::timeout(LIMIT * 2, await_condition(lab.locks(), "block", stalled)).await.expect("it stalls").unwrap().unwrap();
    assert_eq!(kstatus(&failed)["status"], "Failed");
    let held =
        condition(&failed, on::STALLED).last_transition_time.0.duration_since(condition(&waiting, on::STALLED).last_transition_time.0);
    assert!(held.as_secs() >= 60, "{held}");
}
