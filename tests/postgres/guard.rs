//! What the guard refuses, statement by statement, and that its proof says so.

use crate::support::{Db, activate, claim, examine, said, text};
use fencedlock::{
    api::{Contract, GuardMode},
    boundary::{
        Activation,
        proof::{Outcome, Probe, conclude},
    },
};
use k8s_openapi::jiff::Timestamp;

/// A role that is no superuser installs the guard, and every probe passes.
#[tokio::test]
async fn a_guard_is_installed_and_proven_without_a_superuser() {
    let db = Db::new().await;
    let boundary = db.boundary(GuardMode::Enforce);
    let examined = examine(&boundary).await;
    let answers = examined.answers.clone().expect("it was tried");
    for probe in Probe::ALL {
        assert_eq!(answers.of(probe), Some(&Outcome::Passed), "{probe}");
    }
    assert_eq!((&examined.bypasses[..], examined.guard_altered.as_ref(), examined.not_durable.as_ref()), (&[][..], None, None));
    let (seen, proven) = conclude(&examined, None, Some(1), Timestamp::now());
    assert_eq!(seen.proof.map(|proof| proof.contract), Some(Contract::AfterActivation));
    assert_eq!(activate(&boundary, 7, "a").await, Activation::Activated);
    let again = examine(&boundary).await;
    assert_eq!(proven.unwrap().void(Some(1), &again.guard, &again.server), None, "an activation voids nothing");
    assert_eq!(again.refused, Some(0), "probes are not counted");
    assert_eq!(text(&db.admin, "select count(*) || min(v) || max(v) from t").await, "2ab", "nothing is left in anybody's data");
}
