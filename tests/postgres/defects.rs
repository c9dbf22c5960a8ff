//! The twin of the proof: guards with a defect, each found by the probe that is there for it.

use crate::support::{Db, examine};
use fencedlock::{
    api::GuardMode,
    boundary::proof::{Failure, Outcome, Probe, conclude},
};
use k8s_openapi::jiff::Timestamp;

const HOLD: &str = "perform from @schema@.@fence@ where false for key share;";
const EPOCH: &str = "starts_with(claims, @prefix@ || pg_sequence_last_value(@epoch_oid@) || '@')";
const CLAIM: &str = "hashtextextended(claims, 0) = pg_sequence_last_value(@claim_oid@)";
const NOT_OWNER: &str = "raise exception using errcode = 'FL002'";
const NO_CLAIM: &str = "if mine is null then";

#[tokio::test]
async fn each_defect_is_found_by_its_probe() {
    let accepted = Failure::Accepted;
    for (name, right, wrong, probe, failure) in [
        ("it takes no lock", HOLD, "", Probe::RaceRefused, accepted),
        ("it compares nothing", EPOCH, "true or false", Probe::ForeignClaimRefused, accepted),
        ("it counts and lets pass", NOT_OWNER, "return; raise exception using errcode = 'FL002'", Probe::StaleRefused, accepted),
        (
            "it lets pass what claims nothing",
            NO_CLAIM,
            "if mine is null then return; end if; if mine is null then",
            Probe::MissingClaimRefused,
            accepted,
        ),
        ("it compares the epoch and not the holder", CLAIM, "true", Probe::ForeignClaimRefused, accepted),
        ("it refuses everybody", EPOCH, "false", Probe::CurrentAccepted, Failure::Refused),
        (
            "its activation takes a weaker lock",
            "lock table only @schema@.@fence@ in exclusive mode",
            "lock table only @schema@.@fence@ in row exclusive mode",
            Probe::RaceRefused,
            accepted,
        ),
        (
            "it reads epochs from the row, by the snapshot",
            EPOCH,
            "starts_with(claims, @prefix@ || (select epoch from @schema@.@fence@) || '@') and (select claim from @schema@.@fence@) = claims or false",
            Probe::RaceRefused,
            accepted,
        ),
    ] {
        let db = Db::new().await;
        let mut boundary = db.boundary(GuardMode::Enforce).with_defect(right, wrong);
        match name {
            "it compares nothing" | "it reads epochs from the row, by the snapshot" => boundary = boundary.with_defect(CLAIM, "true"),
            // The second comparison is there for what the first one misses: it has to be wrong as well.
            "it refuses everybody" => {
                boundary =
                    boundary.with_defect("if mine = fence.claim and fence.epoch = now_epoch", "if false and fence.epoch = now_epoch");
            }
            _ => {}
        }
        let examined = examine(&boundary).await;
        let found = examined.answers.as_ref().and_then(|answers| answers.of(probe)).cloned();
        assert!(matches!(&found, Some(Outcome::Failed(how, _)) if *how == failure), "{name}: {probe} says {found:?}");
        let (seen, proven) = conclude(&examined, None, Some(1), Timestamp::now());
        assert_eq!(proven, None, "{name}");
        assert_eq!(seen.stale_accepted.is_some(), failure == accepted, "{name}: {seen:?}");
    }
}
