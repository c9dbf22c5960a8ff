//! Clusters that are restored for real: etcd holds what it held before, with and without the database, and a namespace moves to another cluster. Each
//! ends with the next epoch above everything that was issued, and clients from before refused.

use std::sync::LazyLock;

use crate::{
    guard::plane,
    pg::{Db, said},
    postgres::{boundary, critical, enforced},
    recover::{recover, tool},
    support::{Lab, lab::admin, lab::epoch, lease::at, plane::Plane},
};
use fencedlock::api::{Verdict, WriteBoundary};
use kube::api::DeleteParams;

/// A control plane that is stopped and restored, so nobody else may use it.
static RESTORED: LazyLock<Plane> = LazyLock::new(|| plane("restored"));
/// The cluster that a namespace is moved to.
static OTHER: LazyLock<Plane> = LazyLock::new(|| plane("other"));

/// A dump of a database, which goes with it.
struct Dump(std::path::PathBuf);

impl Dump {
    fn of(db: &Db, name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fencedlock-restore-{}-{name}.dump", std::process::id()));
        tool("pg_dump", &["--format=custom", "--file", path.to_str().unwrap(), "--dbname", &db.url("postgres")]);
        Self(path)
    }

    fn restore(&self, db: &Db) {
        tool("pg_restore", &["--clean", "--if-exists", "--dbname", &db.url("postgres"), self.0.to_str().unwrap()]);
    }
}

impl Drop for Dump {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Claims from before are refused, by whoever has the lock now.
async fn are_refused(lab: &Lab, db: &Db, old: &[(u64, &str)]) {
    for (epoch, holder) in old {
        let claim = lab.claim(*epoch, holder);
        assert_eq!(said(&db.claiming(&claim).await, "update t set v = 'old'").await, "FL002", "{claim}");
    }
}

/// The fence that a boundary's status tells.
fn fence_of(boundary: Option<&WriteBoundary>) -> Option<u64> {
    boundary?.status.as_ref()?.fence.as_ref().map(|fence| fence.epoch.get())
}

/// E01: etcd goes back to a backup, alone or together with the database. Alone, the fence that was not restored keeps the order, and `recover` does no harm;
/// together, nothing remembers, and without `recover` an epoch is issued twice: that is the twin.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_restore_of_etcd_the_next_epoch_is_above_everything() {
    for (together, recovers) in [(false, false), (false, true), (true, false), (true, true)] {
        let case = format!("{}{}", if together { "both" } else { "etcd" }, if recovers { "-recovers" } else { "" });
        let (lab, db) = (Lab::on(&RESTORED).await, Db::new().await);
        let operator = enforced(&lab, &db).await;
        operator.stop().await;
        let backup = lab.plane.back_up(&case);
        let dump = Dump::of(&db, &case);
        // Two more owners, of whom the backup knows nothing.
        let operator = lab.operator_slow().await;
        for (epoch, holder) in [(2, "y"), (3, "z")] {
            lab.lease("a").put(Some(holder), Some(i32::try_from(epoch).unwrap()), at(i64::try_from(epoch).unwrap())).await;
            lab.until_active("a", epoch, holder).await;
        }
        operator.stop().await;
        lab.plane.restore(&backup);
        if together {
            dump.restore(&db);
        }
        let restored = lab.locks().get("a").await.unwrap();
        assert_eq!(epoch(&restored), Some(1), "{case}: etcd is as it was");
        // The writers are stopped.
        lab.lease("a").put(None, Some(1), at(1)).await;
        let _operator = lab.operator_slow().await;
        lab.until("a", "released", |s| s.grant.is_none()).await;
        // The status of the boundary was restored too: what the database says now is known once the operator has looked.
        if !together {
            lab.until_boundary("db", "the fence that was not restored", |b: Option<&WriteBoundary>| fence_of(b) == Some(3)).await;
        }
        if recovers {
            let (code, told) = recover(&lab, &["--yes"]);
            assert!(code == 0 && told.contains("yes, proven"), "{case}: {told}");
            assert_eq!(told.contains("above status.epoch"), !together, "{case}: what disagrees is said: {told}");
            are_refused(&lab, &db, &[(1, "x"), (2, "y"), (3, "z")]).await;
        }
        lab.lease("a").put(Some("w"), Some(9), at(9)).await;
        let is_granted = |s: &fencedlock::api::FencedLockStatus| s.grant.as_ref().is_some_and(|g| g.holder.as_str() == "w");
        lab.until("a", "a grant for w", |s| is_granted(s) && s.verdict == Some(Verdict::Enforced)).await;
        let lock =
            lab.until("a", "an active grant for w", |s| is_granted(s) && s.recorded().is_some_and(|recorded| recorded.is_active())).await;
        let next = epoch(&lock).unwrap();
        if together && !recovers {
            assert_eq!(next, 2, "{case}: which is what recover is for");
            continue;
        }
        assert!(next > 3 && (!recovers || next > 1_000_000), "{case}: {next}");
        assert_eq!(said(&db.claiming(&lab.claim(next, "w")).await, "update t set v = 'w'").await, "ok", "{case}");
        are_refused(&lab, &db, &[(1, "x"), (2, "y"), (3, "z")]).await;
    }
}

/// A namespace is restored from manifests into another cluster, where nothing was ever issued, beside the old database.
#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_in_another_cluster_begins_above_the_old_database() {
    let (old, db) = (Lab::new().await, Db::new().await);
    let operator = enforced(&old, &db).await;
    old.lease("a").put(Some("y"), Some(1), at(1)).await;
    old.until_active("a", 2, "y").await;
    operator.stop().await;
    // The old cluster is given up: its lock goes, so that no operator there raises the fence against the new one.
    old.locks().delete("a", &DeleteParams::default()).await.unwrap();

    let lab = Lab { plane: &OTHER, namespace: old.namespace.clone(), admin: admin(&OTHER).await };
    lab.create_namespace(&lab.namespace).await;
    lab.install_chart(&[&lab.namespace]);
    lab.share_secret(&db).await;
    lab.declare_boundary("db", boundary(&db, "Enforce")).await;
    lab.declare_spec("a", critical()).await;
    let _operator = lab.operator_slow().await;
    lab.until_boundary("db", "the fence of the old cluster", |b: Option<&WriteBoundary>| fence_of(b) == Some(2)).await;
    assert_eq!(said(&db.claiming(&lab.claim(2, "y")).await, "update t set v = 'old'").await, "ok", "which is what has to end");
    let (code, told) = recover(&lab, &["--yes"]);
    assert!(code == 0 && told.contains("epoch 1000003 is the newest") && told.contains("yes, proven"), "{told}");
    are_refused(&lab, &db, &[(1, "x"), (2, "y")]).await;
    lab.lease("a").put(Some("w"), Some(9), at(9)).await;
    lab.until_active("a", 1_000_004, "w").await;
    assert_eq!(said(&db.claiming(&lab.claim(1_000_004, "w")).await, "update t set v = 'w'").await, "ok");
    are_refused(&lab, &db, &[(1, "x"), (2, "y")]).await;
}
