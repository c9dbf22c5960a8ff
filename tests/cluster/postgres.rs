//! The whole way with a real database: a lock becomes Enforced because obsolete owners were seen to be refused, and stops being so
//! when that ceases to be true. The operator has the chart's rights, and the team's RoleBinding for its Secret.

use std::{sync::Arc, time::Duration};

use crate::{
    pg::{Db, connect, said, text},
    support::{
        Lab,
        lab::{Running, condition_of, is_active},
        lease::at,
    },
};
use fencedlock::{
    api::{BoundaryVerdict, Verdict, WriteBoundary, WriteBoundaryStatus, conditions::boundary as on_boundary, conditions::lock as on},
    boundary::memory::{Behaviour, Memories},
};
use k8s_openapi::{
    api::{core::v1::Secret, events::v1::Event, rbac::v1::RoleBinding},
    jiff::Timestamp,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

impl Lab {
    /// A Secret with the operator's URL, which the team lets the operator read.
    pub async fn share_secret(&self, db: &Db) {
        let secret = json!({"metadata": {"name": "db"}, "stringData": {"url": db.url(&db.operator)}});
        Api::<Secret>::namespaced(self.admin.clone(), &self.namespace)
            .create(&PostParams::default(), &serde_json::from_value(secret).unwrap())
            .await
            .unwrap();
        self.bind_secrets().await;
    }

    async fn bind_secrets(&self) {
        let role = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "fencedlock-secrets", "namespace": self.namespace},
            "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}]});
        self.plane.kubectl(&["apply", "-f", "-"], &role.to_string());
        let binding = json!({"metadata": {"name": "fencedlock-secrets"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "fencedlock-secrets"},
            "subjects": [{"kind": "ServiceAccount", "name": "fencedlock", "namespace": self.namespace}]});
        Api::<RoleBinding>::namespaced(self.admin.clone(), &self.namespace)
            .create(&PostParams::default(), &serde_json::from_value(binding).unwrap())
            .await
            .unwrap();
    }

    pub fn claim(&self, epoch: u64, holder: &str) -> String {
        format!("{}/a={epoch}@{holder}", self.namespace)
    }

    async fn until_verdict(&self, verdict: BoundaryVerdict, reason: &str) -> WriteBoundaryStatus {
        let is = |b: Option<&WriteBoundary>| {
            b.and_then(|b| b.status.as_ref()).is_some_and(|s| s.verdict == Some(verdict) && s.reason.as_deref() == Some(reason))
        };
        self.until_boundary("db", &format!("{verdict:?} {reason}"), is).await.status.unwrap()
    }

    /// Waits for an Event about an object, and returns its note.
    pub async fn until_event(&self, reason: &str, object: &str) -> String {
        let api = Api::<Event>::namespaced(self.admin.clone(), &self.namespace);
        let deadline = tokio::time::Instant::now() + crate::support::lab::LIMIT;
        loop {
            let events = api.list(&kube::api::ListParams::default()).await.unwrap();
            let is_it = |event: &&Event| {
                event.reason.as_deref() == Some(reason) && event.regarding.as_ref().and_then(|o| o.name.as_deref()) == Some(object)
            };
            if let Some(event) = events.items.iter().find(is_it) {
                return event.note.clone().unwrap_or_default();
            }
            let seen: Vec<_> = events.items.iter().map(|e| (e.reason.clone(), e.note.clone())).collect();
            assert!(tokio::time::Instant::now() < deadline, "no {reason} about {object}: {seen:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

pub fn boundary(db: &Db, mode: &str) -> Value {
    let mut postgres = db.spec();
    postgres["connection"]["secretKeyRef"]["name"] = "db".into();
    json!({"lockRef": {"name": "a"}, "type": "Postgres", "mode": mode, "proof": {"interval": "10s", "maxAge": "30s"}, "postgres": postgres})
}

pub fn critical() -> Value {
    json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "a"}}, "writeBoundaries": ["db"]})
}

/// A lock with a boundary on a database, in this mode, and the operator that looks after both.
pub async fn guarded(lab: &Lab, db: &Db, mode: &str) -> Running {
    lab.share_secret(db).await;
    let operator = lab.operator_slow().await;
    lab.declare_boundary("db", boundary(db, mode)).await;
    lab.declare_spec("a", critical()).await;
    operator
}

/// A lock with an enforcing boundary on a database, held by `x` with epoch 1.
pub async fn enforced(lab: &Lab, db: &Db) -> Running {
    let operator = guarded(lab, db, "Enforce").await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    lab.until("a", "Enforced", |s| s.verdict == Some(Verdict::Enforced)).await;
    operator
}

impl Lab {
    /// An operator that has patience with databases.
    pub async fn operator_slow(&self) -> Running {
        let scope = fencedlock::operator::Scope::Namespaces(vec![self.namespace.clone()]);
        let settings = fencedlock::operator::Settings { scope, ..fencedlock::operator::Settings::default() };
        self.operator_set(self.operator_client().await, settings, self.built_in().await)
    }
}

/// C03: the old owner never asks the lock service again; the database refuses it.
#[tokio::test]
async fn a_lock_is_enforced_because_obsolete_owners_were_seen_to_be_refused() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let operator = enforced(&lab, &db).await;
    let status = lab.until_verdict(BoundaryVerdict::Proven, "AllProbesPassed").await;
    let proof = status.proof.clone().unwrap();
    assert_eq!(proof.probes.len(), 15);
    assert!(proof.server.starts_with("system ") && proof.guard.starts_with("sha256:"), "{proof:?}");
    for kind in [
        on_boundary::READY,
        on_boundary::GUARD_INSTALLED,
        on_boundary::ACTIVATED,
        on_boundary::PROVEN,
        on_boundary::BYPASS_FREE,
        on_boundary::FENCE_DURABLE,
    ] {
        assert!(status.conditions.iter().any(|c| c.type_ == kind && c.status == "True"), "{kind}: {:#?}", status.conditions);
    }
    assert!(serde_json::to_vec(&status).unwrap().len() < 8_192, "a status stays small");
    let owner = db.claiming(&lab.claim(1, "x")).await;
    assert_eq!(said(&owner, "update t set v = 'x'").await, "ok");

    lab.lease("a").put(Some("y"), Some(1), at(1)).await;
    let lock = lab.until_active("a", 2, "y").await;
    assert_eq!(lock.status.unwrap().verdict, Some(Verdict::Enforced), "a change of owner is no change of verdict");
    assert_eq!(said(&owner, "update t set v = 'late'").await, "FL002");
    assert_eq!(said(&db.claiming(&lab.claim(2, "y")).await, "update t set v = 'y'").await, "ok");
    assert_eq!(text(&db.admin, "select string_agg(distinct v, ',') from t").await, "y");
    let told = lab.until_event("WritesRefused", "db").await;
    assert!(told.starts_with("1 write was refused"), "{told}");
    let (_, metrics) = crate::serving::get(&operator, "/metrics").await;
    assert!(metrics.contains("fencedlock_rejected_writes_total{type=\"Postgres\"} 1\n"), "{metrics}");
    assert!(metrics.contains("fencedlock_probes_total{type=\"Postgres\",probe=\"RaceRefused\",outcome=\"Passed\"}"), "{metrics}");
}

/// Mode Observe first: nothing is refused, the grant waits for nothing, and status says who would have been refused.
#[tokio::test]
async fn observing_comes_first_and_enforcing_is_one_edit() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = guarded(&lab, &db, "Observe").await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    lab.until_verdict(BoundaryVerdict::Unproven, "Observing").await;
    let fence =
        |b: Option<&WriteBoundary>| b.and_then(|b| b.status.as_ref()).and_then(|s| s.fence.as_ref()).is_some_and(|f| f.epoch.get() == 1);
    lab.until_boundary("db", "its fence", fence).await;
    let etl = connect(&db.url(&db.writer)).await;
    assert_eq!(said(&etl, "update t set v = v").await, "ok");
    let seen = |b: Option<&WriteBoundary>| {
        b.and_then(|b| b.status.as_ref()).and_then(|s| s.observed.as_ref()).is_some_and(|o| o.would_refuse == Some(1))
    };
    let observed = lab.until_boundary("db", "what would be refused", seen).await.status.unwrap().observed.unwrap();
    assert_eq!(observed.last.unwrap(), format!("role {}, no claim", db.writer));
    lab.boundaries().patch("db", &PatchParams::default(), &Patch::Merge(json!({"spec": {"mode": "Enforce"}}))).await.unwrap();
    let status = lab.until_verdict(BoundaryVerdict::Proven, "AllProbesPassed").await;
    assert_eq!(status.observed, None);
    assert_eq!(said(&etl, "update t set v = v").await, "FL001");
    lab.until("a", "Enforced", |s| s.verdict == Some(Verdict::Enforced)).await;
}

/// A way around is opened: within one interval the boundary and its lock are Violated and name it; closed, they are well again.
#[tokio::test]
async fn a_bypass_is_found_and_its_end_too() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = enforced(&lab, &db).await;
    db.admin.batch_execute(&format!("alter table t owner to {}", db.writer)).await.unwrap();
    let status = lab.until_verdict(BoundaryVerdict::Violated, "BypassFound").await;
    let free = status.conditions.iter().find(|c| c.type_ == on_boundary::BYPASS_FREE).unwrap();
    assert!(free.status == "False" && free.message.contains(&format!("{:?} owns table public.t", db.writer)), "{}", free.message);
    assert_eq!(status.proof, None, "a way around ends the proof");
    let lock = lab.until("a", "Violated", |s| s.verdict == Some(Verdict::Violated)).await.status.unwrap();
    assert!(condition_of(&lock, on::COMPLIANT).message.contains("\"db\""));
    let told = lab.until_event("BypassFound", "db").await;
    assert!(told.contains("owns table"), "{told}");
    db.admin
        .batch_execute(&format!("alter table t owner to {}; grant select, insert, update, delete on t to {}", db.owner, db.writer))
        .await
        .unwrap();
    lab.until("a", "Enforced", |s| s.verdict == Some(Verdict::Enforced)).await;

    let trigger = text(&db.admin, "select tgname from pg_trigger where tgrelid = 't'::regclass").await;
    db.admin.batch_execute(&format!("drop trigger \"{trigger}\" on t")).await.unwrap();
    let status = lab.until_verdict(BoundaryVerdict::Violated, "GuardAltered").await;
    let installed = status.conditions.iter().find(|c| c.type_ == on_boundary::GUARD_INSTALLED).unwrap();
    assert!(installed.status == "False" && installed.message.contains("the trigger on public.t is gone"), "{}", installed.message);
    lab.until("a", "Enforced", |s| s.verdict == Some(Verdict::Enforced)).await;
    assert_eq!(said(&connect(&db.url(&db.writer)).await, "update t set v = v").await, "FL001", "it was installed again");
}

/// Two replicas that both work: what one of them found is not overwritten by the other, which looked before.
#[tokio::test]
async fn what_one_replica_found_another_does_not_take_back() {
    let lab = Lab::new().await;
    let mine = Memories::default();
    lab.declare_boundary("db", memory("a")).await;
    lab.declare_spec("a", critical()).await;
    let _one = lab.operator_with(&[&lab.namespace], Arc::new(mine.clone())).await;
    lab.until_verdict(BoundaryVerdict::Proven, "AllProbesPassed").await;
    // Another one records a finding, which this one would look for again only in minutes.
    let bypass = fencedlock::boundary::proof::Bypass { by_writer: true, text: "writer role \"app\" owns table t".into() };
    mine.of(&lab.namespace, "db").bypass(vec![bypass]);
    let mut old = lab.boundaries().get("db").await.unwrap();
    old.status.as_mut().unwrap().proof = None;
    old.status.as_mut().unwrap().verdict = Some(BoundaryVerdict::Violated);
    old.status.as_mut().unwrap().reason = Some("BypassFound".into());
    lab.boundaries().replace_status("db", &PostParams::default(), &old).await.unwrap();
    let examined = mine.of(&lab.namespace, "db");
    let deadline = tokio::time::Instant::now() + crate::support::lab::LIMIT;
    while examined.examinations() < 2 {
        assert!(tokio::time::Instant::now() < deadline, "it does not look again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // The recorded verdict is the same before and after: only the condition tells that this one wrote what it found.
    let tells = |status: &WriteBoundaryStatus| {
        status.conditions.iter().any(|c| c.type_ == on_boundary::BYPASS_FREE && c.status == "False" && c.message.contains("owns table t"))
    };
    let wrote = |boundary: Option<&WriteBoundary>| boundary.and_then(|b| b.status.as_ref()).is_some_and(tells);
    let status = lab.until_boundary("db", "BypassFree=False by this replica", wrote).await.status.unwrap();
    assert_eq!((status.verdict, status.reason.as_deref()), (Some(BoundaryVerdict::Violated), Some("BypassFound")));
}

/// The fence is beyond the grant: somebody moved it, or Kubernetes was restored. The verdict does not stand still, and the present holder
/// gets a new epoch above it.
#[tokio::test]
async fn a_fence_beyond_the_grant_is_judged_and_passed() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = enforced(&lab, &db).await;
    let base = text(&db.admin, "select replace(tgname, 'fencedlock_', '') from pg_trigger where tgrelid = 't'::regclass").await;
    db.admin.batch_execute(&format!("select fencedlock.\"{base}_activate\"(45, 'ghost')")).await.unwrap();
    lab.until_active("a", 46, "x").await;
    lab.until("a", "Enforced", |s| s.verdict == Some(Verdict::Enforced)).await;
    assert_eq!(said(&db.claiming(&lab.claim(46, "x")).await, "update t set v = v").await, "ok");
    assert_eq!(said(&db.claiming(&lab.claim(45, "ghost")).await, "update t set v = v").await, "FL002");
    db.admin.batch_execute("drop schema fencedlock cascade").await.unwrap();
    let status = lab.until_verdict(BoundaryVerdict::Violated, "GuardAltered").await;
    assert!(status.conditions.iter().any(|c| c.message.contains("is gone from this database")));
    lab.until("a", "Enforced", |s| s.verdict == Some(Verdict::Enforced)).await;
}

/// The database is restored to a state before the last activation: the fence goes up again by itself, and it is told.
#[tokio::test]
async fn a_fence_that_went_back_is_raised_again() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = enforced(&lab, &db).await;
    for (epoch, holder) in [(2, "y"), (3, "z")] {
        lab.lease("a").put(Some(holder), Some(epoch), at(i64::from(epoch))).await;
        lab.until_active("a", u64::try_from(epoch).unwrap(), holder).await;
    }
    let base = text(&db.admin, "select replace(tgname, 'fencedlock_', '') from pg_trigger where tgrelid = 't'::regclass").await;
    let old = lab.claim(1, "x");
    db.admin
        .batch_execute(&format!(
            "update fencedlock.\"{base}_fence\" set epoch = 1, claim = '{old}'; \
             select setval('fencedlock.\"{base}_epoch\"', 1), setval('fencedlock.\"{base}_claim\"', hashtextextended('{old}', 0))"
        ))
        .await
        .unwrap();
    assert_eq!(said(&db.claiming(&old).await, "update t set v = v").await, "ok", "this is what a restore does");
    let told = lab.until_event("FenceRolledBack", "db").await;
    assert!(told.contains("epoch 3") && told.contains("epoch 1"), "{told}");
    lab.until_boundary("db", "the fence at 3", |b: Option<&WriteBoundary>| {
        b.and_then(|b| b.status.as_ref())
            .is_some_and(|s| s.verdict == Some(BoundaryVerdict::Proven) && s.fence.as_ref().is_some_and(|f| f.epoch.get() == 3))
    })
    .await;
    assert_eq!(said(&db.claiming(&old).await, "update t set v = v").await, "FL002");
    assert_eq!(said(&db.claiming(&lab.claim(3, "z")).await, "update t set v = v").await, "ok");
    lab.until_active("a", 3, "z").await;
}

/// An old owner's open transaction keeps the next one Pending, by name, until patience ends it.
#[tokio::test]
async fn an_old_owners_transaction_is_named_and_ended() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = enforced(&lab, &db).await;
    let old = db.claiming(&lab.claim(1, "x")).await;
    old.batch_execute("begin; update t set v = 'stale'").await.unwrap();
    lab.lease("a").put(Some("y"), Some(1), at(1)).await;
    let blocked = lab.until_condition("a", on::EPOCH_ACTIVE, "False", "ActivationFailed").await;
    assert!(blocked.message.contains("blocked by the open transaction of role"), "{}", blocked.message);
    lab.until_active("a", 2, "y").await;
    assert!(old.batch_execute("commit").await.is_err());
    assert_eq!(text(&db.admin, "select count(*) from t where v = 'stale'").await, "0");
}

/// The application's own statement: proven as it is written, under the contract that it can keep, and its limits accepted by name.
#[tokio::test]
async fn a_conditional_update_is_proven_and_its_limits_are_accepted() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    db.admin
        .batch_execute(&format!(
            "create table report (id text primary key, payload text, last_fence bigint not null default 0);
             insert into report (id) values ('canary'); alter table report owner to {};
             grant select, update (payload, last_fence) on report to {}",
            db.owner, db.writer
        ))
        .await
        .unwrap();
    lab.share_secret(&db).await;
    let _operator = lab.operator_slow().await;
    let mut declared = boundary(&db, "Enforce");
    declared.as_object_mut().unwrap().remove("mode");
    declared["writesPerEpoch"] = "Once".into();
    declared["postgres"]["tables"][0]["name"] = "report".into();
    let statement = |compares: &str| {
        json!({"statement": format!("UPDATE report SET payload = $2, last_fence = $3 WHERE id = $1 AND {compares} RETURNING id"),
               "parameters": {"key": 1, "payload": 2, "epoch": 3}, "fenceColumn": "last_fence", "canaryKey": "canary"})
    };
    declared["postgres"]["conditionalUpdate"] = statement("last_fence < $3");
    lab.declare_boundary("db", declared).await;
    // Under AfterActivation the new owner does not start: there is nothing to activate.
    lab.declare_spec("a", critical()).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    let said_so = |status: &fencedlock::api::FencedLockStatus| {
        status.conditions.iter().any(|c| c.type_ == on::EPOCH_ACTIVE && c.status == "False" && c.message.contains("set spec.contract"))
    };
    lab.until("a", "a contract that cannot be kept", said_so).await;
    let contract = Patch::Merge(json!({"spec": {"contract": "AfterAcceptance"}}));
    lab.locks().patch("a", &PatchParams::default(), &contract).await.unwrap();
    lab.until_active("a", 1, "x").await;
    let status = lab.until_verdict(BoundaryVerdict::Unproven, "LimitNotAccepted").await;
    let proven = condition_of_boundary(&status, on_boundary::PROVEN);
    for limit in ["EpochNotBounded", "EpochNotBoundToHolder", "NobodyNotRefused"] {
        assert!(proven.message.contains(limit) && status.limits.iter().any(|l| l.name.to_string() == limit), "{limit}: {proven:?}");
    }
    let edit =
        async |spec: Value| lab.boundaries().patch("db", &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await.unwrap();
    let accepted = json!({"covers": ["EpochNotBounded", "EpochNotBoundToHolder", "NobodyNotRefused"], "acceptedBy": "data-platform",
        "reason": "one writer", "expires": Timestamp::now().checked_add(k8s_openapi::jiff::SignedDuration::from_hours(24)).unwrap().to_string()});
    edit(json!({"riskAcceptance": accepted})).await;
    let status = lab.until_verdict(BoundaryVerdict::RiskAccepted, "RiskAccepted").await;
    assert!(serde_json::to_vec(&status).unwrap().len() < 8_192, "a status stays small");
    let activated = condition_of_boundary(&status, on_boundary::ACTIVATED);
    assert_eq!((activated.status.as_str(), activated.reason.as_str()), ("True", "NotRequired"));
    lab.until("a", "RiskAccepted", |s| s.verdict == Some(Verdict::RiskAccepted)).await;

    // The statement loses its comparison: within one interval it is violated, by its name.
    edit(json!({"postgres": {"conditionalUpdate": statement("true")}})).await;
    let status = lab.until_verdict(BoundaryVerdict::Violated, "ProbeFailed").await;
    let proven = condition_of_boundary(&status, on_boundary::PROVEN);
    assert!(proven.message.contains("UnconditionalUpdate"), "{proven:?}");
    lab.until("a", "Violated", |s| s.verdict == Some(Verdict::Violated)).await;
    // What cannot be run is inconclusive and never proven, and says which field.
    edit(json!({"postgres": {"conditionalUpdate": statement("no such column")}})).await;
    let status = lab.until_verdict(BoundaryVerdict::Unproven, "Inconclusive").await;
    let proven = condition_of_boundary(&status, on_boundary::PROVEN);
    assert!(proven.message.contains("spec.postgres.conditionalUpdate.statement: does not parse"), "{proven:?}");
}

fn condition_of_boundary<'a>(status: &'a WriteBoundaryStatus, kind: &str) -> &'a k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition {
    status.conditions.iter().find(|c| c.type_ == kind).unwrap_or_else(|| panic!("{kind}: {:?}", status.conditions))
}

/// G05, G06: while the API server is away nobody takes over and the database goes on as it was; afterwards the next owner is fenced.
#[tokio::test]
async fn an_api_server_that_restarts_opens_no_database() {
    static PLANE: std::sync::LazyLock<crate::support::plane::Plane> = std::sync::LazyLock::new(|| {
        let plane = crate::support::plane::Plane::start("restart-postgres");
        plane.install_crds();
        plane
    });
    let (lab, db) = (Lab::on(&PLANE).await, Db::new().await);
    let _operator = enforced(&lab, &db).await;
    let (owner, stranger) = (db.claiming(&lab.claim(1, "x")).await, db.claiming(&lab.claim(2, "y")).await);
    PLANE.command("stop-apiserver");
    assert_eq!(said(&owner, "update t set v = 'alone'").await, "ok");
    assert_eq!(said(&stranger, "update t set v = 'early'").await, "FL002");
    PLANE.command("start-apiserver");
    lab.lease("a").put(Some("y"), Some(1), at(1)).await;
    lab.until_active("a", 2, "y").await;
    assert_eq!(said(&owner, "update t set v = 'late'").await, "FL002");
    assert_eq!(said(&stranger, "update t set v = 'y'").await, "ok");
    lab.until_verdict(BoundaryVerdict::Proven, "AllProbesPassed").await;
    // Nothing has a finalizer, and the guard outlives what declared it.
    lab.boundaries().delete("db", &DeleteParams::default()).await.unwrap();
    lab.locks().delete("a", &DeleteParams::default()).await.unwrap();
    assert!(lab.boundaries().get_opt("db").await.unwrap().is_none() && lab.locks().get_opt("a").await.unwrap().is_none());
    assert_eq!(said(&owner, "update t set v = 'late'").await, "FL002");
    assert_eq!(said(&stranger, "update t set v = 'y'").await, "ok");
}

/// What is wrong is said by field, without the secret; never proven, never violated.
#[tokio::test]
async fn what_is_wrong_with_the_secret_is_said_and_mended_without_a_restart() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let _operator = lab.operator_slow().await;
    lab.declare_boundary("db", boundary(&db, "Observe")).await;
    lab.declare_spec("a", critical()).await;
    let said = async |word: &str| {
        let says = |b: Option<&WriteBoundary>| {
            let status = b.and_then(|b| b.status.as_ref());
            status.is_some_and(|s| s.conditions.iter().any(|c| c.type_ == on_boundary::GUARD_INSTALLED && c.message.contains(word)))
        };
        let status = lab.until_boundary("db", word, says).await.status.unwrap();
        assert_eq!((status.verdict, status.proof.as_ref()), (Some(BoundaryVerdict::Unproven), None));
        assert!(!serde_json::to_string(&status).unwrap().contains("hunter2"));
    };
    said("the operator may not get secrets \"db\"").await;
    lab.bind_secrets().await;
    said("there is no Secret \"db\"").await;
    let secrets = Api::<Secret>::namespaced(lab.admin.clone(), &lab.namespace);
    let put = async |data: Value| {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "db"}, "stringData": data});
        secrets.patch("db", &PatchParams::apply("test").force(), &Patch::Apply(secret)).await.unwrap();
    };
    put(json!({"uri": "x"})).await;
    said("key \"url\" of Secret \"db\" does not exist").await;
    put(json!({"url": db.url(&db.operator).replace(&format!(":{}@", db.operator), ":hunter2@")})).await;
    said("password authentication failed").await;
    put(json!({"url": db.url(&db.operator)})).await;
    lab.until_verdict(BoundaryVerdict::Unproven, "Observing").await;
}

/// A restarted operator keeps what was proven and writes nothing; a finding stands until somebody looked again.
#[tokio::test]
async fn a_restart_forgets_no_proof_and_writes_nothing() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let operator = enforced(&lab, &db).await;
    lab.quiet(&operator, "a").await;
    operator.stop().await;
    let before = (lab.boundaries().get("db").await.unwrap(), lab.locks().get("a").await.unwrap());
    let again = lab.operator_slow().await;
    let passed = |metrics: &str| {
        metrics.lines().any(|line| line.starts_with("fencedlock_reconciles_total{kind=\"WriteBoundary\"}") && !line.ends_with(" 0"))
    };
    crate::serving::until(&again, "/metrics", |_, metrics| passed(metrics)).await;
    lab.quiet(&again, "a").await;
    let after = (lab.boundaries().get("db").await.unwrap(), lab.locks().get("a").await.unwrap());
    assert_eq!((before.0.resource_version(), before.1.resource_version()), (after.0.resource_version(), after.1.resource_version()));
    again.stop().await;

    // Nobody runs: the proof grows old, and the next operator says so at once.
    let mut old = after.0;
    let status = old.status.as_mut().unwrap();
    status.proof.as_mut().unwrap().proven_at.0 = Timestamp::now() - Duration::from_hours(1);
    lab.boundaries().replace_status("db", &PostParams::default(), &old).await.unwrap();
    db.admin.batch_execute("alter table t rename to hidden").await.unwrap();
    let _last = lab.operator_slow().await;
    lab.until_verdict(BoundaryVerdict::Unproven, "Inconclusive").await;
    db.admin.batch_execute("alter table hidden rename to t").await.unwrap();
    lab.until_verdict(BoundaryVerdict::Proven, "AllProbesPassed").await;
}

/// Nobody mints while the lock changes hands twice: no successor is let in, and the one who has it at the return is fenced in before it is told so.
#[tokio::test]
async fn an_operator_that_was_absent_lets_nobody_start_unfenced_and_catches_up() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    let operator = enforced(&lab, &db).await;
    operator.stop().await;
    let first = db.claiming(&lab.claim(1, "x")).await;
    for (transitions, holder) in [(1, "y"), (2, "z")] {
        lab.lease("a").put(Some(holder), Some(transitions), at(i64::from(transitions))).await;
        for epoch in [1, 2, 3] {
            let successor = db.claiming(&lab.claim(epoch, holder)).await;
            assert_eq!(said(&successor, "update t set v = 'early'").await, "FL002", "{holder} with epoch {epoch}");
        }
    }
    let status = lab.locks().get("a").await.unwrap().status.unwrap();
    assert!(is_active(&status, 1, "x"), "nobody was told that it may start: {status:?}");
    assert_eq!(said(&first, "update t set v = v").await, "ok", "the fence has not moved");

    let _again = lab.operator_slow().await;
    lab.until_active("a", 2, "z").await;
    assert_eq!(said(&first, "update t set v = 'late'").await, "FL002");
    assert_eq!(said(&db.claiming(&lab.claim(2, "y")).await, "update t set v = 'y'").await, "FL002", "its term came and went unseen");
    assert_eq!(said(&db.claiming(&lab.claim(2, "z")).await, "update t set v = 'z'").await, "ok");
    assert_eq!(text(&db.admin, "select string_agg(distinct v, ',') from t").await, "z");
    lab.until("a", "Enforced", |s| s.verdict == Some(Verdict::Enforced)).await;
}

/// A hundred boundaries that do not answer: the epochs of another lock and its proof come all the same.
#[tokio::test]
async fn a_hundred_dead_databases_delay_nobody_else() {
    let lab = Lab::new().await;
    let backends = Memories::default();
    for n in 0..100 {
        backends.of(&lab.namespace, &format!("dead-{n}")).behave(Behaviour::Slow);
        lab.declare_boundary(&format!("dead-{n}"), memory("dead")).await;
    }
    let _operator = lab.operator_with(&[&lab.namespace], Arc::new(backends.clone())).await;
    lab.declare_spec("dead", json!({"class": "EfficiencyOnly", "coordinator": {"lease": {"name": "dead"}}})).await;
    lab.declare_boundary("db", memory("a")).await;
    lab.declare_spec("a", critical()).await;
    for (epoch, holder) in [(1, "x"), (2, "y"), (3, "z")] {
        lab.lease("a").put(Some(holder), Some(i32::try_from(epoch).unwrap()), at(i64::from(u32::try_from(epoch).unwrap()))).await;
        lab.until_active("a", epoch, holder).await;
    }
    lab.until("a", "Enforced", |s| s.verdict == Some(Verdict::Enforced)).await;
    let dead = lab.boundaries().list(&kube::api::ListParams::default()).await.unwrap();
    let proven = dead.items.iter().filter(|b| b.status.as_ref().and_then(|s| s.verdict) == Some(BoundaryVerdict::Proven));
    assert_eq!(proven.map(ResourceExt::name_any).collect::<Vec<_>>(), ["db"]);
    lab.boundaries().delete("db", &DeleteParams::default()).await.unwrap();
    lab.until("a", "the boundary missing", |s| s.reason.as_deref() == Some("BoundaryMissing")).await;
}

fn memory(lock: &str) -> Value {
    json!({"lockRef": {"name": lock}, "type": "Postgres", "mode": "Enforce", "postgres": {
        "connection": {"secretKeyRef": {"name": "s", "key": "url"}}, "tables": [{"schema": "public", "name": "t"}]}})
}

/// A receiver is gone for good, and its guard is not: the lock gets out of Pending, the guard is told of where another boundary reaches the
/// database, and is opened on purpose.
#[tokio::test]
async fn the_guard_of_a_boundary_that_is_gone_is_told_and_opened() {
    let (lab, db) = (Lab::new().await, Db::new().await);
    db.admin
        .batch_execute(&format!("create table old (id int); alter table old owner to {}; grant insert on old to {}", db.owner, db.writer))
        .await
        .unwrap();
    let operator = guarded(&lab, &db, "Enforce").await;
    let mut old = boundary(&db, "Enforce");
    old["postgres"]["tables"] = json!([{"schema": "public", "name": "old"}]);
    lab.declare_boundary("old", old).await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    lab.until_boundary("old", "proven", |b: Option<&WriteBoundary>| {
        b.and_then(|b| b.status.as_ref()).is_some_and(|s| s.verdict == Some(BoundaryVerdict::Proven))
    })
    .await;
    // It cannot be activated any more: the next owner waits, and says for what.
    let fence = text(&db.admin, "select relname from pg_class where relname like 'old\\_%\\_fence' and relname not like '%canary%'").await;
    db.admin.batch_execute(&format!("alter table fencedlock.{fence} owner to postgres")).await.unwrap();
    lab.lease("a").put(Some("y"), Some(1), at(1)).await;
    lab.until("a", "Pending", |s| {
        s.conditions.iter().any(|c| c.type_ == on::EPOCH_ACTIVE && c.status == "False" && c.message.contains("old"))
    })
    .await;
    // The way out: the boundary is deleted, and the owner starts.
    Api::<WriteBoundary>::namespaced(lab.admin.clone(), &lab.namespace).delete("old", &DeleteParams::default()).await.unwrap();
    lab.until("a", "active", |s| {
        s.grant.as_ref().is_some_and(|g| g.holder.as_str() == "y" && g.state == fencedlock::epoch::grant::GrantState::Active)
    })
    .await;
    db.admin.batch_execute(&format!("alter table fencedlock.{fence} owner to {}", db.operator)).await.unwrap();
    // What it left behind refuses the new owner too, and somebody is told.
    let owner = db.claiming(&lab.claim(2, "y")).await;
    let refused = said(&owner, "insert into old values (1)").await;
    assert_ne!(refused, "ok");
    let told = lab.until_event("OrphanedGuard", "db").await;
    let wanted = format!("fencedlock guard remove old -n {}", lab.namespace);
    assert!(told.contains("stands on public.old") && told.contains(&wanted), "{told}");
    let (_, metrics) = crate::serving::get(&operator, "/metrics").await;
    assert!(metrics.contains("fencedlock_orphaned_guards 1"), "{metrics}");
    let removed = std::process::Command::new(env!("CARGO_BIN_EXE_fencedlock"))
        .args(["guard", "remove", "old", "-n", &lab.namespace, "--yes"])
        .env("FENCEDLOCK_DATABASE_URL", db.url("postgres"))
        .output()
        .unwrap();
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    assert_eq!(said(&owner, "insert into old values (1)").await, "ok");
    lab.until_boundary("db", "no orphan", |b: Option<&WriteBoundary>| {
        let installed =
            b.and_then(|b| b.status.as_ref()).and_then(|s| s.conditions.iter().find(|c| c.type_ == on_boundary::GUARD_INSTALLED));
        installed.is_some_and(|c| c.status == "True" && !c.message.contains("not in this cluster"))
    })
    .await;
    let (_, metrics) = crate::serving::get(&operator, "/metrics").await;
    assert!(metrics.contains("fencedlock_orphaned_guards 0"), "{metrics}");
}
