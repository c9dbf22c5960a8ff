//! The schemas as a real API server reads them: every CEL rule accepts one object and refuses another, every bound holds,
//! and the audit's offline reading of the same schemas gives the same answers.
//!
//! [`declarations`] and [`stories`] are walked together with [`RULES`]: a rule without both answers fails
//! `every_rule_has_an_accepted_and_a_refused_object`.

use std::collections::BTreeSet;

use fencedlock::{
    api::{
        MAX_BOUNDARIES,
        crd::{RULES, Rule},
    },
    audit::schema,
};
use kube::Client;
use serde_json::{Value, json};

use crate::support::Lab;

const LOCKS: &str = "fencedlocks";
const BOUNDARIES: &str = "writeboundaries";

/// In an edit: takes the field away. Real nulls are sent by `a_null_is_an_absent_field` only.
const ABSENT: Value = Value::Null;

/// What the API server says: the object as it would be stored, or why not.
type Answer = Result<Value, Refusal>;

/// A refusal: each cause's field and text, and the whole message.
#[derive(Debug)]
struct Refusal {
    message: String,
    causes: Vec<(String, String)>,
}

/// Sends JSON as it is, unknown fields being errors.
async fn send(client: &Client, method: &str, path: &str, content: &str, body: &Value) -> Answer {
    let separator = if path.contains('?') { '&' } else { '?' };
    let request = http::Request::builder()
        .method(method)
        .uri(format!("{path}{separator}fieldValidation=Strict"))
        .header("Content-Type", content)
        .body(body.to_string().into_bytes())
        .unwrap();
    match client.request::<Value>(request).await {
        Ok(object) => Ok(object),
        Err(kube::Error::Api(status)) => {
            let causes = status.details.as_ref().map(|d| d.causes.clone()).unwrap_or_default();
            Err(Refusal { message: status.message.clone(), causes: causes.into_iter().map(|c| (c.field, c.message)).collect() })
        }
        Err(other) => panic!("{method} {path}: {other}"),
    }
}

fn collection(lab: &Lab, plural: &str) -> String {
    format!("/apis/fencedlock.dev/v1alpha1/namespaces/{}/{plural}", lab.namespace)
}

fn kind(plural: &str) -> &'static str {
    if plural == LOCKS { "FencedLock" } else { "WriteBoundary" }
}

fn object(plural: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": kind(plural), "metadata": {"name": name}, "spec": spec})
}

/// What would come of creating an object with this spec.
async fn dry_run(lab: &Lab, plural: &str, spec: &Value) -> Answer {
    let path = format!("{}?dryRun=All", collection(lab, plural));
    send(&lab.admin, "POST", &path, "application/json", &object(plural, "dry", spec)).await
}

async fn create(lab: &Lab, plural: &str, name: &str, spec: &Value) -> Value {
    let answer = send(&lab.admin, "POST", &collection(lab, plural), "application/json", &object(plural, name, spec)).await;
    answer.unwrap_or_else(|e| panic!("{plural} {name}: {e:?}"))
}

async fn read(lab: &Lab, plural: &str, name: &str) -> Value {
    let request = http::Request::get(format!("{}/{name}", collection(lab, plural))).body(Vec::new()).unwrap();
    lab.admin.request(request).await.unwrap()
}

// --- Objects that are accepted as they stand.

fn lease_lock() -> Value {
    json!({"class": "CorrectnessCritical", "purpose": "Two would overwrite each other's report.",
        "coordinator": {"lease": {"name": "report-writer", "podNamespace": "reporting"}}, "writeBoundaries": ["report-db"],
        "revoke": {"term": {"leaseUid": "1-2-3", "acquireTime": "2026-12-01T00:00:00.123456Z"}, "holder": "worker-a_1", "reason": "it hangs"}})
}

fn external_lock() -> Value {
    json!({"class": "CorrectnessCritical", "coordinator": {"external": {"system": "Redlock", "token": "RandomOwnerId"}}})
}

fn acceptance(covers: &[&str]) -> Value {
    json!({"covers": covers, "acceptedBy": "payments-oncall", "reason": "the provider has no fencing",
        "compensation": "daily reconciliation", "expires": "2027-03-31T00:00:00Z"})
}

fn managed() -> Value {
    json!({"lockRef": {"name": "report-writer"}, "type": "Postgres", "mode": "Enforce", "proof": {"interval": "5m", "maxAge": "15m"},
        "riskAcceptance": acceptance(&["FailoverMayForget"]),
        "postgres": {"connection": {"secretKeyRef": {"name": "report-db", "key": "url"}},
            "tables": [{"schema": "public", "name": "report_result"}], "writerRoles": ["report_app"],
            "exemptRoles": [{"role": "dba", "reason": "break-glass"}], "patience": "10s"}})
}

fn conditional() -> Value {
    json!({"lockRef": {"name": "report-writer"}, "type": "Postgres", "writesPerEpoch": "Once",
        "postgres": {"connection": {"secretKeyRef": {"name": "report-db", "key": "url"}},
            "tables": [{"schema": "public", "name": "report_result"}],
            "conditionalUpdate": {
                "statement": "UPDATE report_result SET payload = $2, last_fence = $3 WHERE report_id = $1 AND last_fence < $3 RETURNING 1",
                "parameters": {"key": 1, "payload": 2, "epoch": 3}, "fenceColumn": "last_fence", "canaryKey": "__fencedlock__"}}})
}

fn pod_identity() -> Value {
    json!({"lockRef": {"name": "report-writer"}, "type": "Kubernetes", "mode": "Observe",
        "kubernetes": {"claim": "PodIdentity", "targets": [{"group": "apps", "resource": "deployments", "names": ["web"]}],
            "containers": ["manager"], "statusWriters": [{"user": "kubelet", "reason": "it reports"}],
            "exemptSubjects": [{"group": "platform-team", "reason": "break-glass"}],
            "exemptions": [{"user": "system:serviceaccount:kube-system:deployment-controller", "reason": "it writes the revision"}]}})
}

fn annotation() -> Value {
    json!({"lockRef": {"name": "report-writer"}, "type": "Kubernetes",
        "kubernetes": {"claim": "Annotation", "targets": [{"resource": "configmaps", "selector": "app=web,tier!=test"}]}})
}

fn external() -> Value {
    json!({"lockRef": {"name": "report-writer"}, "type": "External", "riskAcceptance": acceptance(&["CannotEnforce"]),
        "external": {"receiver": "payments.example/charges", "idempotencyKey": {"template": "{workItem}", "ttl": "24h"},
            "ledger": {"connection": {"secretKeyRef": {"name": "ledger", "key": "url"}}, "schema": "public", "table": "operations",
                "unknownAfter": "15m"}}})
}

/// The object with fields set, and those of [`ABSENT`] taken away.
fn edited<const N: usize>(base: Value, edits: [(&str, Value); N]) -> Value {
    edits.into_iter().fold(base, |mut object, (pointer, value)| {
        let (parent, last) = pointer.rsplit_once('/').unwrap();
        match object.pointer_mut(parent) {
            Some(Value::Object(fields)) if value == ABSENT => {
                fields.remove(last).unwrap_or_else(|| panic!("{pointer} is not there"));
            }
            Some(Value::Object(fields)) => {
                fields.insert(last.to_owned(), value);
            }
            Some(Value::Array(items)) => items[last.parse::<usize>().unwrap()] = value,
            _ => panic!("{pointer} has no parent"),
        }
        object
    })
}

// --- The rules that look at one object.

/// A spec, and what the rule says to it.
struct Declaration {
    rule: &'static Rule,
    accepted: bool,
    spec: Value,
}

impl Declaration {
    fn kind(&self) -> &'static str {
        kind(self.rule.plural)
    }
}

#[derive(Default)]
struct Table(Vec<Declaration>);

/// The one rule at a place with these words in its message.
fn rule(plural: &str, at: &str, words: &str) -> &'static Rule {
    let mut found = RULES.iter().filter(|r| r.plural == plural && r.at == at && r.message.contains(words));
    match (found.next(), found.next()) {
        (Some(rule), None) => rule,
        (first, _) => panic!("{plural} {at:?} {words:?}: {} rule", if first.is_some() { "more than one" } else { "no" }),
    }
}

impl Table {
    fn accepts<const N: usize>(&mut self, rule: &'static Rule, base: fn() -> Value, edits: [(&str, Value); N]) {
        self.0.push(Declaration { rule, accepted: true, spec: edited(base(), edits) });
    }

    fn refuses<const N: usize>(&mut self, rule: &'static Rule, base: fn() -> Value, edits: [(&str, Value); N]) {
        self.0.push(Declaration { rule, accepted: false, spec: edited(base(), edits) });
    }

    /// A rule about one text.
    fn text(&mut self, rule: &'static Rule, base: fn() -> Value, good: &[&str], bad: &[&str]) {
        let pointer = rule.at.trim_start_matches("spec").replace("[]", "0").replace('.', "/");
        for text in good {
            self.accepts(rule, base, [(&pointer, json!(text))]);
        }
        for text in bad {
            self.refuses(rule, base, [(&pointer, json!(text))]);
        }
    }

    fn not_blank(&mut self, plural: &str, at: &str, base: fn() -> Value) {
        self.text(
            rule(plural, at, "blank"),
            base,
            &["x", " x\n", "ü", "\u{2003}💥"],
            &[" ", " \t\n\r", "\u{a0}\u{2003}", "\u{200b}\u{b}\u{85}"],
        );
    }

    fn subdomain(&mut self, plural: &str, at: &str, base: fn() -> Value) {
        self.text(rule(plural, at, "DNS subdomain"), base, &["a", "0", "a.b-c"], &["a.", ".a", "A", "a_b", "-a", "a-", "a..b", "ä"]);
    }
}

fn declarations() -> Vec<Declaration> {
    let mut table = Table::default();
    lock_rules(&mut table);
    boundary_rules(&mut table);
    risk_and_proof_rules(&mut table);
    postgres_rules(&mut table);
    kubernetes_rules(&mut table);
    external_rules(&mut table);
    table.0
}

fn lock_rules(table: &mut Table) {
    table.not_blank(LOCKS, "spec.purpose", lease_lock);
    let one = rule(LOCKS, "spec.coordinator", "exactly one");
    table.accepts(one, lease_lock, []);
    table.accepts(one, external_lock, []);
    table.refuses(one, lease_lock, [("/coordinator", json!({}))]);
    table.refuses(one, external_lock, [("/coordinator/lease", json!({"name": "a"}))]);
    table.subdomain(LOCKS, "spec.coordinator.lease.name", lease_lock);
    let label = rule(LOCKS, "spec.coordinator.lease.podNamespace", "DNS label");
    table.text(label, lease_lock, &["a", "0", "a-b"], &["a.b", "A", "-a", "a-", "a_b"]);
    table.not_blank(LOCKS, "spec.coordinator.external.system", external_lock);
    table.subdomain(LOCKS, "spec.writeBoundaries.[]", lease_lock);
    table.not_blank(LOCKS, "spec.revoke.reason", lease_lock);
}

fn boundary_rules(table: &mut Table) {
    let member = rule(BOUNDARIES, "spec", "exactly the member that type names");
    for base in [managed, conditional, pod_identity, annotation, external] {
        table.accepts(member, base, []);
        table.accepts(member, base, [("/lockRef/name", json!("another"))]);
    }
    let (to_kubernetes, to_external) = (pod_identity()["kubernetes"].clone(), external()["external"].clone());
    table.refuses(member, managed, [("/external", to_external.clone())]);
    table.refuses(member, managed, [("/kubernetes", to_kubernetes)]);
    table.refuses(member, managed, [("/postgres", ABSENT)]);
    table.refuses(member, annotation, [("/kubernetes", ABSENT)]);
    table.refuses(member, external, [("/external", ABSENT)]);
    table.refuses(member, external, [("/type", json!("Kubernetes")), ("/riskAcceptance", ABSENT)]);

    let mode = rule(BOUNDARIES, "spec", "mode must be absent");
    for value in ["Observe", "Enforce"] {
        table.accepts(mode, managed, [("/mode", json!(value))]);
        table.accepts(mode, annotation, [("/mode", json!(value))]);
        table.refuses(mode, external, [("/mode", json!(value))]);
        table.refuses(mode, conditional, [("/mode", json!(value))]);
    }
    table.accepts(mode, managed, [("/mode", ABSENT)]);

    let needed = rule(BOUNDARIES, "spec", "writesPerEpoch is required");
    for value in ["Once", "Many", "Sequenced"] {
        table.accepts(needed, conditional, [("/writesPerEpoch", json!(value))]);
    }
    table.refuses(needed, conditional, [("/writesPerEpoch", ABSENT)]);

    let possible = rule(BOUNDARIES, "spec", "writesPerEpoch must be what the backend gives");
    let bases: [fn() -> Value; 4] = [managed, pod_identity, annotation, external];
    for (base, given) in bases.into_iter().zip(["Many", "Many", "Sequenced", "nothing"]) {
        for value in ["Once", "Many", "Sequenced"] {
            let edit = [("/writesPerEpoch", json!(value))];
            if given == value { table.accepts(possible, base, edit) } else { table.refuses(possible, base, edit) }
        }
    }
    table.subdomain(BOUNDARIES, "spec.lockRef.name", managed);
}

fn risk_and_proof_rules(table: &mut Table) {
    let covers = rule(BOUNDARIES, "spec", "covers names what cannot happen");
    let of_postgres: &[&str] = &["FailoverMayForget", "EpochNotBounded", "EpochNotBoundToHolder", "NobodyNotRefused"];
    let of_kubernetes: &[&str] = &["CreateNotFenced", "ScaleNotFenced", "WholeObjectWritersRefused"];
    let names = [&["CannotEnforce"], of_postgres, of_kubernetes];
    let bases: [fn() -> Value; 3] = [external, managed, pod_identity];
    for (of, base) in bases.into_iter().enumerate() {
        table.accepts(covers, base, [("/riskAcceptance", acceptance(names[of]))]);
        for (other, names) in names.iter().enumerate() {
            for name in names.iter().filter(|_| other != of) {
                table.refuses(covers, base, [("/riskAcceptance", acceptance(&[name]))]);
            }
        }
        let mixed = [names[of][0], names[(of + 1) % 3][0]];
        table.refuses(covers, base, [("/riskAcceptance", acceptance(&mixed))]);
    }
    for field in ["acceptedBy", "reason", "compensation"] {
        table.not_blank(BOUNDARIES, &format!("spec.riskAcceptance.{field}"), external);
    }

    let ends = rule(BOUNDARIES, "spec.riskAcceptance.expires", "before the year 9999");
    table.text(ends, external, &["2027-03-31T00:00:00Z", "9998-12-31T23:59:59Z"], &["9999-01-01T00:00:00Z"]);

    let shortest = rule(BOUNDARIES, "spec.proof", "at least 10s");
    for good in ["10s", "10000ms", "0h10s", "1h30m"] {
        table.accepts(shortest, annotation, [("/proof", json!({"interval": good}))]);
    }
    for bad in ["9s", "9999ms", "0s", "500ms"] {
        table.refuses(shortest, annotation, [("/proof", json!({"interval": bad}))]);
    }
    let lasts = rule(BOUNDARIES, "spec.proof", "maxAge must not be shorter");
    for good in [json!({}), json!({"maxAge": "5m"}), json!({"interval": "1h", "maxAge": "60m"}), json!({"interval": "99999h"})] {
        table.accepts(lasts, annotation, [("/proof", good)]);
    }
    for bad in [json!({"maxAge": "299s"}), json!({"interval": "1h", "maxAge": "59m"})] {
        table.refuses(lasts, annotation, [("/proof", bad)]);
    }
}

fn postgres_rules(table: &mut Table) {
    table.subdomain(BOUNDARIES, "spec.postgres.connection.secretKeyRef.name", managed);
    let key = rule(BOUNDARIES, "spec.postgres.connection.secretKeyRef.key", "Secret's key");
    table.text(key, managed, &["url", "a.b-C_0"], &["a b", "a/b", "ü", "a\n"]);
    let together = rule(BOUNDARIES, "spec.postgres.conditionalUpdate", "go together");
    let (column, holder) = ("/postgres/conditionalUpdate/holderColumn", "/postgres/conditionalUpdate/parameters/holder");
    table.accepts(together, conditional, []);
    table.accepts(together, conditional, [(column, json!("owner")), (holder, json!(4))]);
    table.refuses(together, conditional, [(column, json!("owner"))]);
    table.refuses(together, conditional, [(holder, json!(4))]);
    let own = rule(BOUNDARIES, "spec.postgres.conditionalUpdate.parameters", "a number of its own");
    table.accepts(own, conditional, [("/postgres/conditionalUpdate/parameters/key", json!(64))]);
    for (field, number) in [("key", 2), ("payload", 3), ("epoch", 1)] {
        table.refuses(own, conditional, [(&format!("/postgres/conditionalUpdate/parameters/{field}"), json!(number))]);
    }
    for number in 1..=3 {
        table.refuses(own, conditional, [(column, json!("owner")), (holder, json!(number))]);
    }
    table.not_blank(BOUNDARIES, "spec.postgres.conditionalUpdate.statement", conditional);
    table.not_blank(BOUNDARIES, "spec.postgres.exemptRoles.[].reason", managed);
}

fn kubernetes_rules(table: &mut Table) {
    let one = rule(BOUNDARIES, "spec.kubernetes.targets.[]", "exactly one of names and selector");
    table.accepts(one, pod_identity, []);
    table.accepts(one, annotation, []);
    table.refuses(one, pod_identity, [("/kubernetes/targets/0/selector", json!("app=web"))]);
    table.refuses(one, annotation, [("/kubernetes/targets/0/selector", ABSENT)]);
    let selects = rule(BOUNDARIES, "spec.kubernetes.targets.[].selector", "must name a label");
    for selector in
        ["app", "app=web", "app==web", "a.b/c=web,!x", "!x,app=web", "tier!=test,app in (a, b)", "x notin (a,b),app", "app in (a,b)"]
    {
        table.accepts(selects, annotation, [("/kubernetes/targets/0/selector", json!(selector))]);
    }
    for selector in ["!app", "app!=web", "app notin (a,b)", "app notin (a,b,c)", "!a,!b", "a!=b,c notin (d,e,f)", " "] {
        table.refuses(selects, annotation, [("/kubernetes/targets/0/selector", json!(selector))]);
    }
    let no_leases = rule(BOUNDARIES, "spec.kubernetes.targets.[]", "Leases cannot be targets");
    table.accepts(no_leases, pod_identity, [("/kubernetes/targets/0/group", json!(""))]);
    table.accepts(no_leases, pod_identity, [("/kubernetes/targets/0/group", ABSENT)]);
    table.refuses(no_leases, pod_identity, [("/kubernetes/targets/0/group", json!("coordination.k8s.io"))]);
    let group = rule(BOUNDARIES, "spec.kubernetes.targets.[].group", "must be empty");
    table.accepts(group, pod_identity, [("/kubernetes/targets/0/group", json!(""))]);
    table.accepts(group, pod_identity, [("/kubernetes/targets/0/group", json!("batch.example"))]);
    table.refuses(group, pod_identity, [("/kubernetes/targets/0/group", json!("A B"))]);
    table.subdomain(BOUNDARIES, "spec.kubernetes.targets.[].resource", pod_identity);
    table.not_blank(BOUNDARIES, "spec.kubernetes.targets.[].names.[]", pod_identity);
    let subject = rule(BOUNDARIES, "spec.kubernetes.exemptSubjects.[]", "exactly one of user and group");
    table.accepts(subject, pod_identity, []);
    table.accepts(subject, pod_identity, [("/kubernetes/exemptSubjects/0", json!({"user": "ann", "reason": "on call"}))]);
    table.refuses(subject, pod_identity, [("/kubernetes/exemptSubjects/0/group", ABSENT)]);
    table.refuses(subject, pod_identity, [("/kubernetes/exemptSubjects/0/user", json!("ann"))]);
    for list in ["statusWriters", "exemptSubjects", "exemptions"] {
        table.not_blank(BOUNDARIES, &format!("spec.kubernetes.{list}.[].reason"), pod_identity);
    }
}

fn external_rules(table: &mut Table) {
    table.not_blank(BOUNDARIES, "spec.external.receiver", external);
    let template = "spec.external.idempotencyKey.template";
    let names_it = rule(BOUNDARIES, template, "must name the work item");
    table.text(names_it, external, &["{workItem}", "{namespace}/{lock}/{workItem}"], &["fixed", "{lock}", "workItem"]);
    let allowed = rule(BOUNDARIES, template, "placeholders are");
    table.text(
        allowed,
        external,
        &["charge-{workItem}-{workItem}"],
        &[
            "{workItem}{na{lock}mespace}",
            "{workItem}-{epoch}",
            "{workItem}{holder}",
            "{workItem}{",
            "}{workItem}",
            "{{workItem}}",
            "{workItem}{Lock}",
            "{workItem}{ lock }",
        ],
    );
    table.subdomain(BOUNDARIES, "spec.external.ledger.connection.secretKeyRef.name", external);
}

/// The field of a rule in the API server's answer: the first item of each list.
fn field(rule: &Rule) -> String {
    if rule.at.is_empty() { "<nil>".into() } else { rule.at.replace(".[]", "[0]") }
}

/// Fails unless exactly these rules refused, each with its message at its field.
fn refused_by(answer: &Answer, rules: &[&Rule], what: &str) {
    let Err(refusal) = answer else { panic!("accepted, and {rules:?} must refuse {what}") };
    let matches = |(at, text): &(String, String), rule: &Rule| *at == field(rule) && text.ends_with(rule.message);
    assert!(
        refusal.causes.len() == rules.len() && rules.iter().all(|rule| refusal.causes.iter().any(|cause| matches(cause, rule))),
        "{what} must be refused by {rules:#?}: {refusal:#?}"
    );
    for rule in rules {
        assert!(refusal.message.contains(rule.message) && refusal.message.contains(&field(rule)), "{what}: {}", refusal.message);
    }
}

#[tokio::test]
async fn each_rule_accepts_what_it_says_and_refuses_the_rest_by_name() {
    let lab = Lab::new().await;
    for case in declarations() {
        let (what, answer) = (format!("{} {}", case.kind(), case.spec), dry_run(&lab, case.rule.plural, &case.spec).await);
        match answer {
            Err(refusal) if case.accepted => panic!("{:?} must accept {what}: {refusal:#?}", case.rule),
            Ok(_) if case.accepted => {}
            answer => refused_by(&answer, &[case.rule], &what),
        }
    }
}

#[tokio::test]
async fn the_base_objects_are_accepted_and_readable_as_our_types() {
    let lab = Lab::new().await;
    for (name, spec) in [("lease", lease_lock()), ("external", external_lock())] {
        lab.declare_spec(name, spec).await;
    }
    let boundaries = [managed(), conditional(), pod_identity(), annotation(), external()];
    for (index, spec) in boundaries.into_iter().enumerate() {
        lab.declare_boundary(&format!("b{index}"), spec).await;
    }
}

#[test]
fn every_rule_has_an_accepted_and_a_refused_object() {
    let (declarations, stories) = (declarations(), stories());
    let told = stories.iter().flat_map(|s| &s.steps).flat_map(|step| step.rules.iter().map(|rule| (*rule, step.accepted)));
    let answers: Vec<_> = declarations.iter().map(|d| (d.rule, d.accepted)).chain(told).collect();
    let missing: Vec<_> = RULES
        .iter()
        .flat_map(|rule| [(rule, true), (rule, false)])
        .filter(|(rule, accepted)| !answers.iter().any(|(of, answer)| std::ptr::eq(*of, *rule) && answer == accepted))
        .map(|(rule, accepted)| {
            let answer = if accepted { "accepted" } else { "refused" };
            format!("no {answer} object for {} {:?}: {}", rule.plural, rule.at, rule.message)
        })
        .collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

// --- The rules that compare an object with what it was.

/// A change of an existing object.
enum Write {
    /// A merge patch of the declaration.
    Spec(Value),
    /// A merge patch of the status.
    Status(Value),
    /// A JSON patch through the status subresource.
    StatusOperation(Value),
    /// A PUT of the status subresource; `None` leaves the status out.
    ReplaceStatus(Option<Value>),
    /// A PUT of the object with this status; `None` leaves it out.
    Replace(Option<Value>),
}

/// A change and its answer. An accepted step is an accepted object for `rules`; a refused one is refused by all of them.
struct Step {
    says: &'static str,
    rules: Vec<&'static Rule>,
    accepted: bool,
    write: Write,
}

/// One object's life.
struct Story {
    plural: &'static str,
    spec: Value,
    steps: Vec<Step>,
}

impl Story {
    fn of(plural: &'static str, spec: Value) -> Self {
        Self { plural, spec, steps: Vec::new() }
    }

    fn accepts(mut self, rules: &[&'static Rule], says: &'static str, write: Write) -> Self {
        self.steps.push(Step { says, rules: rules.to_vec(), accepted: true, write });
        self
    }

    fn refuses(mut self, rules: &[&'static Rule], says: &'static str, write: Write) -> Self {
        self.steps.push(Step { says, rules: rules.to_vec(), accepted: false, write });
        self
    }

    async fn happens(self) {
        let lab = Lab::new().await;
        let Self { plural, spec, steps } = self;
        create(&lab, plural, "a", &spec).await;
        for step in steps {
            let answer = write(&lab, plural, step.write).await;
            match answer {
                Err(refusal) if step.accepted => panic!("{} must be accepted: {refusal:#?}", step.says),
                Ok(_) if step.accepted => {}
                answer => refused_by(&answer, &step.rules, step.says),
            }
        }
    }
}

async fn write(lab: &Lab, plural: &str, change: Write) -> Answer {
    const MERGE: &str = "application/merge-patch+json";
    let url = format!("{}/a", collection(lab, plural));
    let status_url = format!("{url}/status");
    let with_status = async |status: Option<Value>| {
        let mut object = read(lab, plural, "a").await;
        let fields = object.as_object_mut().unwrap();
        fields.remove("status");
        fields.extend(status.map(|status| ("status".to_owned(), status)));
        object
    };
    match change {
        Write::Spec(patch) => send(&lab.admin, "PATCH", &url, MERGE, &json!({"spec": patch})).await,
        Write::Status(patch) => send(&lab.admin, "PATCH", &status_url, MERGE, &json!({"status": patch})).await,
        Write::StatusOperation(patch) => send(&lab.admin, "PATCH", &status_url, "application/json-patch+json", &json!([patch])).await,
        Write::ReplaceStatus(status) => send(&lab.admin, "PUT", &status_url, "application/json", &with_status(status).await).await,
        Write::Replace(status) => send(&lab.admin, "PUT", &url, "application/json", &with_status(status).await).await,
    }
}

fn grant(epoch: u64, holder: &str, state: &str) -> Value {
    json!({"epoch": epoch, "holder": holder, "state": state, "since": "2026-12-01T00:00:00Z", "term": {"leaseUid": "1-2-3"}})
}

/// A status with an epoch and a grant of it.
fn granted(epoch: u64, holder: &str, state: &str) -> Value {
    json!({"epoch": epoch, "grant": grant(epoch, holder, state)})
}

fn never_decreases() -> &'static Rule {
    rule(LOCKS, "", "never decreases")
}

fn newest() -> &'static Rule {
    rule(LOCKS, "", "a grant carries the newest epoch")
}

fn once() -> &'static Rule {
    rule(LOCKS, "", "granted once")
}

fn no_jump() -> &'static Rule {
    rule(LOCKS, "", "does not jump")
}

fn stories() -> Vec<Story> {
    vec![
        an_epoch_is_granted_once(),
        an_epoch_of_nobody_is_nobodys(),
        an_epoch_never_decreases(),
        an_epoch_does_not_jump(),
        a_first_epoch_is_small(),
        a_lock_reference_stays(),
        a_type_stays(),
    ]
}

fn an_epoch_is_granted_once() -> Story {
    Story::of(LOCKS, lease_lock())
        .refuses(&[newest()], "a grant without an epoch", Write::Status(json!({"grant": grant(41, "a", "Pending")})))
        .accepts(&[newest(), once(), no_jump()], "the first grant", Write::Status(granted(41, "a", "Pending")))
        .accepts(&[newest(), once()], "the same grant again", Write::Status(granted(41, "a", "Pending")))
        .accepts(&[newest(), once()], "Pending becomes Active", Write::Status(json!({"grant": {"state": "Active"}})))
        .refuses(&[once()], "Active goes back to Pending", Write::Status(json!({"grant": {"state": "Pending"}})))
        .refuses(&[once()], "the same epoch for another holder", Write::Status(json!({"grant": {"holder": "b"}})))
        .refuses(&[newest(), once()], "a lowered grant", Write::Status(json!({"grant": {"epoch": 40}})))
        .refuses(&[newest()], "a grant above the epoch", Write::Status(json!({"grant": grant(42, "b", "Pending")})))
        .refuses(&[newest()], "the epoch moves on and the old grant stays", Write::Status(json!({"epoch": 42})))
        .accepts(&[never_decreases()], "a release", Write::Status(json!({"grant": null})))
        .refuses(&[once()], "the epoch granted a second time", Write::Status(json!({"grant": grant(41, "a", "Pending")})))
        .refuses(&[once()], "and not as Active either", Write::Status(json!({"grant": grant(41, "a", "Active")})))
        .accepts(&[newest(), once(), never_decreases()], "the next epoch", Write::Status(granted(42, "b", "Pending")))
        .accepts(&[newest(), once()], "a takeover without a release", Write::Status(granted(43, "c", "Active")))
        .accepts(&[never_decreases()], "an epoch for nobody", Write::Status(json!({"epoch": 44, "grant": null})))
        .refuses(&[once()], "nobody's epoch for somebody", Write::Status(json!({"grant": grant(44, "c", "Pending")})))
        .accepts(&[once()], "the holder is back, under its own epoch", Write::Status(granted(45, "c", "Pending")))
}

fn an_epoch_of_nobody_is_nobodys() -> Story {
    let alone = rule(LOCKS, "", "a revocation carries the newest epoch");
    let fresh = rule(LOCKS, "", "an epoch of nobody was nobody's before");
    let revoked = |epoch: u64, state: &str| {
        let term = &grant(epoch, "a", state)["term"];
        json!({"epoch": epoch, "holder": "a", "state": state, "reason": "it loops", "term": term})
    };
    let revokes = |epoch: u64, state: &str| Write::Status(json!({"epoch": epoch, "grant": null, "revoked": revoked(epoch, state)}));
    Story::of(LOCKS, lease_lock())
        .accepts(&[newest(), once()], "a grant", Write::Status(granted(41, "a", "Active")))
        .refuses(&[alone, fresh], "a revocation under the epoch of the grant", Write::Status(json!({"revoked": revoked(41, "Pending")})))
        .refuses(&[fresh], "the epoch of the grant for nobody", revokes(41, "Pending"))
        .accepts(&[alone, fresh], "the next epoch for nobody", revokes(42, "Pending"))
        .accepts(&[alone, fresh], "Pending becomes Active", Write::Status(json!({"revoked": {"state": "Active"}})))
        .refuses(&[fresh], "Active goes back to Pending", Write::Status(json!({"revoked": {"state": "Pending"}})))
        .refuses(&[alone], "the epoch moves on and the revocation stays", Write::Status(json!({"epoch": 43})))
        .refuses(&[alone, newest(), once()], "a grant beside it", Write::Status(json!({"grant": grant(41, "a", "Active")})))
        .refuses(&[once()], "nobody's epoch for somebody", Write::Status(json!({"revoked": null, "grant": grant(42, "a", "Pending")})))
        .accepts(&[alone, once()], "the next epoch for somebody", {
            let mut next = granted(43, "b", "Pending");
            next["revoked"] = Value::Null;
            Write::Status(next)
        })
}

fn an_epoch_never_decreases() -> Story {
    let empty = json!({"op": "replace", "path": "/status", "value": {}});
    let nothing = json!({"op": "remove", "path": "/status"});
    let dropped = json!({"op": "remove", "path": "/status/epoch"});
    let down = &[never_decreases()];
    Story::of(LOCKS, lease_lock())
        .accepts(down, "the first epoch", Write::Status(json!({"epoch": 41})))
        .accepts(down, "the same epoch", Write::Status(json!({"epoch": 41, "verdict": "Unproven"})))
        .refuses(down, "the epoch before", Write::Status(json!({"epoch": 40})))
        .refuses(down, "a dropped epoch, by merge", Write::Status(json!({"epoch": null})))
        .refuses(down, "a dropped epoch, by JSON patch", Write::StatusOperation(dropped))
        .refuses(down, "a status replaced by an empty one", Write::StatusOperation(empty))
        .refuses(down, "a removed status", Write::StatusOperation(nothing))
        .refuses(down, "a status merged with null", Write::Status(Value::Null))
        .refuses(down, "a PUT of an empty status", Write::ReplaceStatus(Some(json!({}))))
        .refuses(down, "a PUT without a status", Write::ReplaceStatus(None))
        .accepts(down, "a PUT of the declaration, which cannot reach the status", Write::Replace(None))
        .accepts(down, "and not with a lower epoch either", Write::Replace(Some(json!({"epoch": 1}))))
        .refuses(down, "the epoch is still remembered", Write::Status(json!({"epoch": 40})))
        .accepts(down, "a PUT of a status with the next epoch", Write::ReplaceStatus(Some(granted(42, "b", "Active"))))
        .refuses(&[never_decreases(), once()], "the epoch before, granted", Write::Status(granted(41, "b", "Active")))
}

fn an_epoch_does_not_jump() -> Story {
    const STEP: u64 = 1 << 40;
    const FLOOR: u64 = 1 << 52;
    let (jump, floor) = (&[no_jump()], |floor: u64| Write::Spec(json!({"epochFloor": floor})));
    let epoch = |epoch: u64| Write::Status(json!({"epoch": epoch}));
    Story::of(LOCKS, lease_lock())
        .accepts(jump, "an epoch", epoch(41))
        .refuses(jump, "a jump to the last epoch", epoch((1 << 53) - 1))
        .refuses(jump, "a jump by more than 2^40", epoch(41 + STEP + 1))
        .accepts(jump, "a jump by 2^40", epoch(41 + STEP))
        .accepts(jump, "a floor that a person set", floor(FLOOR))
        .refuses(jump, "a jump to the floor itself", epoch(FLOOR))
        .refuses(jump, "a jump above the floor's next", epoch(FLOOR + 2))
        .accepts(jump, "a jump to the floor's next", epoch(FLOOR + 1))
        .accepts(&[never_decreases()], "a floor that is lowered again changes nothing", floor(0))
        .accepts(jump, "and the lock goes on from there", epoch(FLOOR + 2))
}

fn a_first_epoch_is_small() -> Story {
    const STEP: u64 = 1 << 40;
    let epoch = |epoch: u64| Write::Status(json!({"epoch": epoch}));
    Story::of(LOCKS, lease_lock()).refuses(&[no_jump()], "a first epoch above 2^40", epoch(STEP + 1)).accepts(
        &[no_jump()],
        "a first epoch of 2^40",
        epoch(STEP),
    )
}

fn a_lock_reference_stays() -> Story {
    let immutable = &[rule(BOUNDARIES, "spec.lockRef", "immutable")];
    Story::of(BOUNDARIES, managed())
        .accepts(immutable, "a change of something else", Write::Spec(json!({"mode": "Observe", "lockRef": {"name": "report-writer"}})))
        .refuses(immutable, "another lock", Write::Spec(json!({"lockRef": {"name": "another"}})))
}

fn a_type_stays() -> Story {
    let immutable = &[rule(BOUNDARIES, "spec.type", "immutable")];
    let others = json!({"type": "Kubernetes", "external": null, "riskAcceptance": null, "kubernetes": annotation()["kubernetes"]});
    Story::of(BOUNDARIES, external())
        .accepts(immutable, "a change of something else", Write::Spec(json!({"external": {"receiver": "mail"}})))
        .refuses(immutable, "another type with its member", Write::Spec(others))
}

#[tokio::test]
async fn an_epoch_is_granted_once_to_one_holder_and_active_stays_active() {
    an_epoch_is_granted_once().happens().await;
}

#[tokio::test]
async fn an_epoch_of_nobody_is_granted_to_nobody() {
    an_epoch_of_nobody_is_nobodys().happens().await;
}

#[tokio::test]
async fn an_epoch_never_decreases_also_not_by_dropping_it_or_the_status() {
    an_epoch_never_decreases().happens().await;
}

#[tokio::test]
async fn an_epoch_does_not_jump_except_to_what_a_person_set() {
    an_epoch_does_not_jump().happens().await;
    a_first_epoch_is_small().happens().await;
}

#[tokio::test]
async fn the_lock_and_the_type_of_a_boundary_stay() {
    a_lock_reference_stays().happens().await;
    a_type_stays().happens().await;
}

#[tokio::test]
async fn a_locks_class_and_coordinator_may_change() {
    Story::of(LOCKS, external_lock())
        .accepts(&[], "from Redlock to a Lease", Write::Spec(json!({"coordinator": {"external": null, "lease": {"name": "a"}}})))
        .accepts(&[], "to another Lease", Write::Spec(json!({"coordinator": {"lease": {"name": "b"}}})))
        .accepts(&[], "to efficiency-only", Write::Spec(json!({"class": "EfficiencyOnly"})))
        .happens()
        .await;
}

// --- Bounds and structure.

/// A spec with something at or beyond a bound, and the field and words of the refusal, if it is one.
struct Bound {
    plural: &'static str,
    spec: Value,
    refused: Option<(&'static str, &'static str)>,
}

#[derive(Default)]
struct Bounds(Vec<Bound>);

impl Bounds {
    fn accepts<const N: usize>(&mut self, base: fn() -> Value, edits: [(&str, Value); N]) {
        self.push(base, edits, None);
    }

    fn refuses<const N: usize>(&mut self, base: fn() -> Value, edits: [(&str, Value); N], field: &'static str, words: &'static str) {
        self.push(base, edits, Some((field, words)));
    }

    fn push<const N: usize>(&mut self, base: fn() -> Value, edits: [(&str, Value); N], refused: Option<(&'static str, &'static str)>) {
        let plural = if base().get("class").is_some() { LOCKS } else { BOUNDARIES };
        self.0.push(Bound { plural, spec: edited(base(), edits), refused });
    }
}

fn bounds() -> Vec<Bound> {
    let mut bounds = Bounds::default();
    bounds_of_names(&mut bounds);
    bounds_of_locks(&mut bounds);
    bounds_of_boundaries(&mut bounds);
    times_and_durations(&mut bounds);
    bounds.0
}

/// A DNS subdomain of this length.
fn subdomain(length: usize) -> Value {
    let mut name = format!("{0}.{0}.{0}.", "a".repeat(63));
    name.push_str(&"b".repeat(length - name.len()));
    assert_eq!(name.len(), length);
    json!(name)
}

/// B07: a Lease's name is what the API server accepts for a Lease.
fn bounds_of_names(bounds: &mut Bounds) {
    let name = "/coordinator/lease/name";
    bounds.accepts(lease_lock, [(name, json!("a"))]);
    bounds.accepts(lease_lock, [(name, json!("report.writer.example"))]);
    bounds.accepts(lease_lock, [(name, subdomain(253))]);
    bounds.refuses(lease_lock, [(name, subdomain(254))], "spec.coordinator.lease.name", "253");
    bounds.refuses(lease_lock, [(name, json!(""))], "spec.coordinator.lease.name", "at least 1");
    bounds.refuses(lease_lock, [(name, ABSENT)], "spec.coordinator.lease.name", "Required");
    bounds.refuses(lease_lock, [(name, json!(7))], "spec.coordinator.lease.name", "must be of type string");
    let namespace = "/coordinator/lease/podNamespace";
    bounds.accepts(lease_lock, [(namespace, json!("n".repeat(63)))]);
    bounds.refuses(lease_lock, [(namespace, json!("n".repeat(64)))], "spec.coordinator.lease.podNamespace", "63");
}

fn bounds_of_locks(bounds: &mut Bounds) {
    bounds.refuses(lease_lock, [("/class", json!("Important"))], "spec.class", "\"CorrectnessCritical\", \"EfficiencyOnly\"");
    bounds.refuses(lease_lock, [("/class", json!("efficiencyOnly"))], "spec.class", "Unsupported value");
    bounds.refuses(lease_lock, [("/class", json!(""))], "spec.class", "Unsupported value");
    bounds.refuses(lease_lock, [("/class", json!(true))], "spec.class", "must be of type string");
    bounds.refuses(lease_lock, [("/coordinator", ABSENT)], "spec.coordinator", "Required");
    bounds.refuses(lease_lock, [("/coordinator", json!([]))], "spec.coordinator", "must be of type object");
    bounds.refuses(external_lock, [("/coordinator/external/token", ABSENT)], "spec.coordinator.external.token", "Required");
    bounds.refuses(external_lock, [("/coordinator/external/token", json!("Uuid"))], "spec.coordinator.external.token", "Unsupported");
    for floor in [json!(0), json!(1_u64 << 52)] {
        bounds.accepts(lease_lock, [("/epochFloor", floor)]);
    }
    bounds.refuses(lease_lock, [("/epochFloor", json!(-1))], "spec.epochFloor", "greater than or equal to 0");
    bounds.refuses(lease_lock, [("/epochFloor", json!((1_u64 << 52) + 1))], "spec.epochFloor", "less than or equal to 4503599627370496");
    bounds.refuses(lease_lock, [("/epochFloor", json!(1.5))], "spec.epochFloor", "must be of type int");
    bounds.refuses(lease_lock, [("/epochFloor", json!("1"))], "spec.epochFloor", "must be of type integer");
    let names = |count: usize| json!((0..count).map(|n| format!("b{n}")).collect::<Vec<_>>());
    bounds.accepts(lease_lock, [("/writeBoundaries", json!([]))]);
    bounds.accepts(lease_lock, [("/writeBoundaries", names(MAX_BOUNDARIES))]);
    bounds.refuses(lease_lock, [("/writeBoundaries", names(MAX_BOUNDARIES + 1))], "spec.writeBoundaries", "at most 32 items");
    bounds.refuses(lease_lock, [("/writeBoundaries", json!(["a", "b", "a"]))], "spec.writeBoundaries[2]", "Duplicate value");
    bounds.refuses(lease_lock, [("/writeBoundaries", json!(["a", null]))], "spec.writeBoundaries[1]", "must be of type string");
    bounds.accepts(lease_lock, [("/purpose", json!("ü".repeat(1024)))]);
    bounds.refuses(lease_lock, [("/purpose", json!("ü".repeat(1025)))], "spec.purpose", "1024");
    bounds.refuses(lease_lock, [("/purpose", json!(""))], "spec.purpose", "at least 1");
    bounds.accepts(lease_lock, [("/purpose", ABSENT)]);
    for (field, wrong) in [("/contract", "spec.contract"), ("/replay", "spec.replay"), ("/rollout", "spec.rollout")] {
        bounds.refuses(lease_lock, [(field, json!("Never"))], wrong, "Unsupported value");
    }
    bounds.refuses(lease_lock, [("/revoke/term", json!({}))], "spec.revoke.term.leaseUid", "Required");
    bounds.refuses(lease_lock, [("/revoke/holder", json!("h".repeat(513)))], "spec.revoke.holder", "512");
}

fn bounds_of_boundaries(bounds: &mut Bounds) {
    bounds.refuses(managed, [("/lockRef", ABSENT)], "spec.lockRef", "Required");
    bounds.refuses(managed, [("/type", ABSENT)], "spec.type", "Required");
    bounds.refuses(managed, [("/type", json!("Redis"))], "spec.type", "Unsupported value");
    bounds.refuses(managed, [("/mode", json!("Off"))], "spec.mode", "Unsupported value");
    bounds.refuses(managed, [("/lockRef/name", subdomain(254))], "spec.lockRef.name", "253");
    bounds.refuses(managed, [("/postgres/tables", json!([]))], "spec.postgres.tables", "at least 1 items");
    let table = json!({"schema": "public", "name": "t"});
    let tables = |count: usize| json!((0..count).map(|n| json!({"schema": "public", "name": format!("t{n}")})).collect::<Vec<_>>());
    bounds.accepts(managed, [("/postgres/tables", tables(64))]);
    bounds.refuses(managed, [("/postgres/tables", tables(65))], "spec.postgres.tables", "at most 64 items");
    bounds.accepts(managed, [("/postgres/tables", json!([table, {"schema": "private", "name": "t"}]))]);
    bounds.refuses(managed, [("/postgres/tables", json!([table, table]))], "spec.postgres.tables[1]", "Duplicate value");
    let twice = |reason: &str, other: &str, key: &str| json!([{key: "x", "reason": reason}, {key: "x", "reason": other}]);
    bounds.refuses(managed, [("/postgres/exemptRoles", twice("a", "b", "role"))], "spec.postgres.exemptRoles[1]", "Duplicate value");
    bounds.refuses(managed, [("/postgres/writerRoles", json!(["a", "a"]))], "spec.postgres.writerRoles[1]", "Duplicate value");
    bounds.refuses(managed, [("/postgres/writerRoles", json!([""]))], "spec.postgres.writerRoles[0]", "at least 1");
    for (number, words) in [(0, "greater than or equal to 1"), (65, "less than or equal to 64"), (-1, "greater than or equal to 1")] {
        let key = "/postgres/conditionalUpdate/parameters/key";
        bounds.refuses(conditional, [(key, json!(number))], "spec.postgres.conditionalUpdate.parameters.key", words);
    }
    let statement = "/postgres/conditionalUpdate/statement";
    bounds.refuses(conditional, [(statement, json!("x".repeat(8193)))], "spec.postgres.conditionalUpdate.statement", "8192");
    bounds.refuses(pod_identity, [("/kubernetes/targets", json!([]))], "spec.kubernetes.targets", "at least 1 items");
    bounds.refuses(pod_identity, [("/kubernetes/claim", ABSENT)], "spec.kubernetes.claim", "Required");
    let names = "/kubernetes/targets/0/names";
    bounds.refuses(pod_identity, [(names, json!([]))], "spec.kubernetes.targets[0].names", "at least 1 items");
    bounds.refuses(pod_identity, [(names, json!(["a", "a"]))], "spec.kubernetes.targets[0].names[1]", "Duplicate value");
    bounds.refuses(pod_identity, [("/kubernetes/containers", json!(["a", "a"]))], "spec.kubernetes.containers[1]", "Duplicate value");
    for (list, second) in [("statusWriters", "spec.kubernetes.statusWriters[1]"), ("exemptions", "spec.kubernetes.exemptions[1]")] {
        bounds.refuses(pod_identity, [(&format!("/kubernetes/{list}"), twice("a", "b", "user"))], second, "Duplicate value");
    }
    let covers = "/riskAcceptance/covers";
    bounds.refuses(external, [(covers, json!([]))], "spec.riskAcceptance.covers", "at least 1 items");
    bounds.refuses(external, [(covers, json!(["CannotEnforce", "CannotEnforce"]))], "spec.riskAcceptance.covers[1]", "Duplicate value");
    bounds.refuses(external, [(covers, json!(["Everything"]))], "spec.riskAcceptance.covers[0]", "Unsupported value");
    bounds.refuses(external, [("/riskAcceptance/expires", ABSENT)], "spec.riskAcceptance.expires", "Required");
    bounds.refuses(external, [("/riskAcceptance/acceptedBy", ABSENT)], "spec.riskAcceptance.acceptedBy", "Required");
}

fn times_and_durations(bounds: &mut Bounds) {
    for good in ["0s", "10s", "1h30m", "1h1m1s1ms", "99999h", "00500ms"] {
        bounds.accepts(managed, [("/postgres/patience", json!(good))]);
    }
    for bad in ["", "5", "m", "-5m", "+5m", "1.5h", "5 m", "5d", "100000s", "1h1m1s1ms1s", "5M", "1µs", "5m\n", "PT5M"] {
        bounds.refuses(managed, [("/postgres/patience", json!(bad))], "spec.postgres.patience", "should match");
    }
    bounds.refuses(managed, [("/postgres/patience", json!(10))], "spec.postgres.patience", "must be of type string");
    bounds.refuses(managed, [("/proof/interval", json!("often"))], "spec.proof.interval", "should match");
    bounds.refuses(managed, [("/proof/maxAge", json!("15"))], "spec.proof.maxAge", "should match");
    bounds.refuses(external, [("/external/idempotencyKey/ttl", json!("1d"))], "spec.external.idempotencyKey.ttl", "should match");
    for good in ["2027-03-31T00:00:00Z", "2027-03-31T00:00:00.123456Z", "2027-03-31T02:00:00+02:00", "2028-02-29T00:00:00Z"] {
        bounds.accepts(external, [("/riskAcceptance/expires", json!(good))]);
    }
    let never = [("/riskAcceptance/expires", json!("9999-12-31T23:59:59Z"))];
    bounds.refuses(external, never, "spec.riskAcceptance.expires", "before the year 9999");
    for bad in [
        "",
        "soon",
        "2027-03-31",
        "2027-03-31 00:00:00Z",
        "2027-03-31T00:00Z",
        "2027-03-31T00:00:00",
        "2027-02-29T00:00:00Z",
        "2027-03-31T24:00:00Z",
        "2027-03-31T23:59:60Z",
        "2027-03-31T00:00:00+0200",
        "2027-03-31T00:00:00Z[UTC]",
        "20270331T000000Z",
    ] {
        bounds.refuses(external, [("/riskAcceptance/expires", json!(bad))], "spec.riskAcceptance.expires", "must be of type date-time");
    }
}

#[tokio::test]
async fn every_bound_holds_and_the_answer_names_the_field() {
    let lab = Lab::new().await;
    for Bound { plural, spec, refused } in bounds() {
        match (dry_run(&lab, plural, &spec).await, refused) {
            (Ok(_), None) => {}
            (Err(refusal), Some((field, words))) => {
                let named = refusal.causes.iter().any(|(at, text)| at == field && text.contains(words));
                assert!(named, "{field} must be refused with {words:?} in {spec}: {refusal:#?}");
            }
            (answer, wanted) => panic!("wanted {wanted:?}, got {answer:#?} for {spec}"),
        }
    }
}

/// G02: an absent class is refused, whatever else is declared; it never means efficiency-only.
#[tokio::test]
async fn an_absent_class_is_refused() {
    let lab = Lab::new().await;
    let null = json!({"class": null, "coordinator": {"lease": {"name": "a"}}});
    for spec in [edited(lease_lock(), [("/class", ABSENT)]), edited(external_lock(), [("/class", ABSENT)]), null] {
        let refusal = dry_run(&lab, LOCKS, &spec).await.unwrap_err();
        assert!(refusal.causes.contains(&("spec.class".into(), "Required value".into())), "{refusal:#?}");
    }
}

/// A null is dropped before anything looks at it: `lease: null` is no coordinator, and beside `external` it is no second one.
#[tokio::test]
async fn a_null_is_an_absent_field() {
    let lab = Lab::new().await;
    let coordinator = |coordinator: Value| json!({"class": "EfficiencyOnly", "coordinator": coordinator});
    let exactly_one = [rule(LOCKS, "spec.coordinator", "exactly one")];
    let none = dry_run(&lab, LOCKS, &coordinator(json!({"lease": null}))).await;
    refused_by(&none, &exactly_one, "lease: null");
    let both = coordinator(json!({"lease": {"name": "a"}, "external": {"system": "Redlock", "token": "None"}}));
    refused_by(&dry_run(&lab, LOCKS, &both).await, &exactly_one, "two coordinators");
    let beside = coordinator(json!({"lease": null, "external": {"system": "Redlock", "token": "None"}}));
    let stored = dry_run(&lab, LOCKS, &beside).await.unwrap();
    assert_eq!(stored["spec"]["coordinator"], json!({"external": {"system": "Redlock", "token": "None"}}));
    // A null where there is a default gets the default.
    let defaulted = json!({"class": "EfficiencyOnly", "coordinator": {"lease": {"name": "a"}}, "contract": null, "epochFloor": null});
    let stored = dry_run(&lab, LOCKS, &defaulted).await.unwrap();
    assert_eq!((&stored["spec"]["contract"], &stored["spec"]["epochFloor"]), (&json!("AfterActivation"), &json!(0)));
}

#[tokio::test]
async fn an_unknown_field_is_an_error_under_strict_validation_and_is_dropped_otherwise() {
    let lab = Lab::new().await;
    let nowhere = [("/kubernetes/targets/0/nmaes", json!(["x"])), ("/writePerEpoch", json!("Many"))];
    let refusal = dry_run(&lab, BOUNDARIES, &edited(pod_identity(), nowhere)).await.unwrap_err();
    for field in ["spec.kubernetes.targets[0].nmaes", "spec.writePerEpoch"] {
        assert!(refusal.message.contains(&format!("unknown field \"{field}\"")), "{refusal:#?}");
    }
    let spec = edited(lease_lock(), [("/coordinator/lease/nmae", json!("x"))]);
    let refusal = dry_run(&lab, LOCKS, &spec).await.unwrap_err();
    assert!(refusal.message.contains("unknown field \"spec.coordinator.lease.nmae\""), "{refusal:#?}");
    let manifest = object(LOCKS, "a", &spec).to_string();
    let namespace = ["-n", lab.namespace.as_str()];
    let (applied, said) = lab.plane.try_kubectl(&[&["apply", "-f", "-"], &namespace[..]].concat(), &manifest);
    assert!(!applied && said.contains("unknown field"), "kubectl is strict by itself: {said}");
    lab.plane.kubectl(&[&["apply", "-f", "-", "--validate=ignore"], &namespace[..]].concat(), &manifest);
    let stored = read(&lab, LOCKS, "a").await;
    assert_eq!(stored["spec"]["coordinator"]["lease"].get("nmae"), None, "not stored");
}

#[tokio::test]
async fn an_epoch_and_its_grant_are_bounded_in_the_status() {
    let lab = Lab::new().await;
    create(&lab, LOCKS, "a", &lease_lock()).await;
    let grant_of = |edit: (&str, Value)| edited(granted(41, "a", "Pending"), [edit]);
    for (status, field, words) in [
        (json!({"epoch": 0}), "status.epoch", "greater than or equal to 1"),
        (json!({"epoch": 1_u64 << 53}), "status.epoch", "less than or equal to 9007199254740991"),
        (grant_of(("/grant/holder", json!(""))), "status.grant.holder", "at least 1"),
        (grant_of(("/grant/holder", json!("h".repeat(513)))), "status.grant.holder", "512"),
        (grant_of(("/grant/state", json!("Waiting"))), "status.grant.state", "Unsupported value"),
        (grant_of(("/grant/term", ABSENT)), "status.grant.term", "Required"),
        (json!({"verdict": "Fine"}), "status.verdict", "Unsupported value"),
        (json!({"conditions": [{"type": "Ready"}]}), "status.conditions[0].status", "Required"),
    ] {
        let refusal = write(&lab, LOCKS, Write::Status(status.clone())).await.unwrap_err();
        let named = refusal.causes.iter().any(|(at, text)| at == field && text.contains(words));
        assert!(named, "{field} must be refused with {words:?} in {status}: {refusal:#?}");
    }
    let condition =
        json!({"type": "Ready", "status": "True", "reason": "Evaluated", "message": "", "lastTransitionTime": "2026-12-01T00:00:00Z"});
    let twice = write(&lab, LOCKS, Write::Status(json!({"conditions": [condition, condition]}))).await.unwrap_err();
    assert!(twice.causes.iter().any(|(at, text)| at == "status.conditions[1]" && text.contains("Duplicate value")), "{twice:#?}");
}

// --- Defaults.

#[tokio::test]
async fn five_lines_are_a_lock_and_wait_for_an_operator() {
    let lab = Lab::new().await;
    let spec = json!({"class": "CorrectnessCritical", "purpose": "two would double", "coordinator": {"lease": {"name": "a"}}});
    let pending = json!({"conditions": [{"type": "Ready", "status": "Unknown", "reason": "Pending",
        "message": "Waiting for the operator: is it installed and running?", "lastTransitionTime": "1970-01-01T00:00:00Z"}]});
    create(&lab, LOCKS, "a", &spec).await;
    let lock = read(&lab, LOCKS, "a").await;
    assert_eq!(lock["status"], pending);
    assert_eq!(
        lock["spec"],
        json!({"class": "CorrectnessCritical", "purpose": "two would double", "coordinator": {"lease": {"name": "a", "identity": "Auto"}},
            "contract": "AfterActivation", "epochFloor": 0, "rollout": "Report"})
    );
    // What a creator writes into the status does not count.
    let mut pretends = object(LOCKS, "b", &spec);
    pretends["status"] = granted(7, "b", "Active");
    let stored = send(&lab.admin, "POST", &collection(&lab, LOCKS), "application/json", &pretends).await.unwrap();
    assert_eq!(stored["status"], pending);

    let least = edited(annotation(), [("/kubernetes/targets/0/selector", ABSENT), ("/kubernetes/targets/0/names", json!(["web"]))]);
    create(&lab, BOUNDARIES, "a", &least).await;
    let boundary = read(&lab, BOUNDARIES, "a").await;
    assert_eq!(boundary["status"], pending);
    let target = json!({"group": "", "resource": "configmaps", "names": ["web"]});
    assert_eq!(boundary["spec"]["kubernetes"], json!({"claim": "Annotation", "targets": [target], "reacquire": "NewProcess"}));
    let fields: BTreeSet<_> = boundary["spec"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        fields,
        BTreeSet::from(["lockRef", "type", "kubernetes"]),
        "mode, writesPerEpoch and proof have defaults per type, not here"
    );
}

// --- What a person sees.

fn table(output: &str) -> Vec<Vec<&str>> {
    output.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test]
async fn kubectl_shows_what_an_operator_of_locks_looks_for() {
    let lab = Lab::new().await;
    let kubectl = |args: &[&str]| lab.plane.kubectl(&[args, &["-n", &lab.namespace]].concat(), "");
    let resources = kubectl(&["api-resources", "--api-group=fencedlock.dev", "--no-headers"]);
    assert_eq!(
        table(&resources),
        [
            ["fencedlocks", "fl", "fencedlock.dev/v1alpha1", "true", "FencedLock"],
            ["writeboundaries", "wb", "fencedlock.dev/v1alpha1", "true", "WriteBoundary"]
        ]
    );
    create(&lab, LOCKS, "a", &lease_lock()).await;
    create(&lab, BOUNDARIES, "a", &managed()).await;

    let (locks, wide) = (kubectl(&["get", "fl"]), kubectl(&["get", "fl", "-o", "wide"]));
    let columns = ["NAME", "CLASS", "VERDICT", "EPOCH", "BOUNDARIES", "PROVEN", "HOLDER", "AGE"];
    assert_eq!(table(&locks)[0], columns);
    assert_eq!(table(&wide)[0], [&columns[..], &["REASON", "GRANT"]].concat());
    assert_eq!(table(&locks)[1][..2], ["a", "CorrectnessCritical"]);
    assert_eq!(table(&locks)[1].len(), 3, "blank but for the age before the first status: {locks}");

    let (boundaries, wide) = (kubectl(&["get", "wb"]), kubectl(&["get", "wb", "-o", "wide"]));
    let columns = ["NAME", "LOCK", "TYPE", "MODE", "VERDICT", "FENCE", "PROVEN", "AGE"];
    assert_eq!(table(&boundaries)[0], columns);
    assert_eq!(table(&wide)[0], [&columns[..], &["REASON", "CONTRACT"]].concat());
    assert_eq!(table(&boundaries)[1][..4], ["a", "report-writer", "Postgres", "Enforce"]);
    assert_eq!(table(&boundaries)[1].len(), 5, "{boundaries}");

    let names = kubectl(&["get", "fencing", "-o", "name"]);
    assert_eq!(names.lines().collect::<Vec<_>>(), ["fencedlock.fencedlock.dev/a", "writeboundary.fencedlock.dev/a"]);
}

#[tokio::test]
async fn kubectl_shows_the_story_of_a_lock_and_of_a_boundary_in_their_columns() {
    let lab = Lab::new().await;
    create(&lab, LOCKS, "a", &lease_lock()).await;
    let mut status = granted(42, "worker-b_5f2c", "Active");
    let told =
        json!({"verdict": "Enforced", "reason": "AllBoundariesProven", "boundarySummary": "1/1", "provenAt": "2020-01-01T00:00:00Z"});
    status.as_object_mut().unwrap().extend(told.as_object().unwrap().clone());
    write(&lab, LOCKS, Write::Status(status)).await.unwrap();
    let output = lab.plane.kubectl(&["get", "fl", "a", "-o", "wide", "--no-headers", "-n", &lab.namespace], "");
    let row = &table(&output)[0];
    assert_eq!(row[..5], ["a", "CorrectnessCritical", "Enforced", "42", "1/1"]);
    assert!(row[5].contains('y'), "PROVEN is an age that grows when nobody proves: {output}");
    assert_eq!((row[6], &row[8..]), ("worker-b_5f2c", &["AllBoundariesProven", "Active"][..]), "{output}");

    create(&lab, BOUNDARIES, "a", &managed()).await;
    let proof = json!({"provenAt": "2020-01-01T00:00:00Z", "server": "s", "guard": "sha256:0"});
    let status =
        json!({"verdict": "Proven", "reason": "AllProbesPassed", "contract": "AfterActivation", "fence": {"epoch": 42}, "proof": proof});
    write(&lab, BOUNDARIES, Write::Status(status)).await.unwrap();
    let output = lab.plane.kubectl(&["get", "wb", "a", "-o", "wide", "--no-headers", "-n", &lab.namespace], "");
    let row = &table(&output)[0];
    assert_eq!(row[..6], ["a", "report-writer", "Postgres", "Enforce", "Proven", "42"]);
    assert!(row[6].contains('y'), "{output}");
    assert_eq!(row[8..], ["AllProbesPassed", "AfterActivation"]);
}

#[tokio::test]
async fn critical_locks_can_be_listed_alone_and_the_class_explains_itself() {
    let lab = Lab::new().await;
    create(&lab, LOCKS, "critical", &lease_lock()).await;
    create(&lab, LOCKS, "efficient", &edited(lease_lock(), [("/class", json!("EfficiencyOnly"))])).await;
    for (class, name) in [("CorrectnessCritical", "critical"), ("EfficiencyOnly", "efficient")] {
        let selector = format!("spec.class={class}");
        let listed = lab.plane.kubectl(&["get", "fl", "-o", "name", "-n", &lab.namespace, "--field-selector", &selector], "");
        assert_eq!(listed.trim(), format!("fencedlock.fencedlock.dev/{name}"));
    }
    for (place, texts) in [
        ("fencedlock.spec", &["class <string> -required-", "absent never means efficiency-only", "At most 2^52"][..]),
        (
            "fencedlock.spec.class",
            &["FIELD: class <string>", "ENUM: CorrectnessCritical EfficiencyOnly", "absent never means efficiency-only"],
        ),
        ("wb.spec.lockRef.name", &["The FencedLock's name, in the same namespace."]),
    ] {
        let explained = lab.plane.kubectl(&["explain", place], "").split_whitespace().collect::<Vec<_>>().join(" ");
        for text in texts {
            assert!(explained.contains(text), "{text} in {explained}");
        }
    }
}

// --- Agreement with the audit's offline reading.

/// What the audit answers without an API server.
fn offline(plural: &str, spec: &Value) -> Vec<(String, String)> {
    schema::check(kind(plural), &object(plural, "dry", spec)).into_iter().map(|e| (e.path, e.message)).collect()
}

#[tokio::test]
async fn the_offline_audit_and_the_api_server_give_the_same_answer() {
    let lab = Lab::new().await;
    let mut differences = Vec::new();
    let bounds = bounds();
    let declarations = declarations();
    let specs = declarations.iter().map(|d| (d.rule.plural, &d.spec)).chain(bounds.iter().map(|b| (b.plural, &b.spec)));
    for (plural, spec) in specs {
        let (real, offline) = (dry_run(&lab, plural, spec).await, offline(plural, spec));
        if real.is_ok() != offline.is_empty() {
            let real = real.map(|_| "accepted").map_err(|e| e.causes);
            differences.push(format!("{} {spec}: API server {real:?}, offline {offline:?}", kind(plural)));
        }
    }
    assert!(differences.is_empty(), "{} differences: {differences:#?}", differences.len());
}

/// The same words, too: a finding in CI reads like the API server's refusal.
#[test]
fn the_offline_audit_names_the_same_field_with_the_same_message() {
    for case in declarations() {
        let wanted = if case.accepted { vec![] } else { vec![(field(case.rule), case.rule.message.to_owned())] };
        assert_eq!(offline(case.rule.plural, &case.spec), wanted, "{}", case.spec);
    }
}
