//! Whether a candidate gives up before another one may take over.
//!
//! client-go's leader sleeps for the retry period after a renewal, and then tries for the renew deadline; only then it gives up. Another candidate
//! may take over one lease duration after the last renewal. So `retryPeriod + renewDeadline` has to be less than `leaseDuration`, with room for a
//! request that is not cancelled (case A07). More room makes an overlap rarer and excludes none: that takes a fence.

use std::{borrow::Cow, time::Duration};

use super::settings::{Setting, What, duration};
use crate::audit::rules::{Finding, catalogue as rule};

/// What client-go and controller-runtime take when nothing is set.
const LEASE_DURATION: Duration = Duration::from_secs(15);
const RENEW_DEADLINE: Duration = Duration::from_secs(10);
const RETRY_PERIOD: Duration = Duration::from_secs(2);
/// A lease that lasts so long blocks everybody after a crash (case H05).
const LONG: Duration = Duration::from_hours(1);

/// What there is to say about the durations of one container.
pub(super) fn about(container: &str, settings: &[Cow<'_, Setting>]) -> Vec<Finding> {
    let set = |what: What| {
        let found =
            settings.iter().rev().find(|setting| setting.what == what && setting.value.as_ref().is_some_and(|value| !value.is_empty()))?;
        Some((duration(found.value.as_deref()?)?, found.place.as_str()))
    };
    let (lease, renew, retry) = (set(What::LeaseDuration), set(What::RenewDeadline), set(What::RetryPeriod));
    let mut findings = Vec::new();
    if lease.is_some() || renew.is_some() || retry.is_some() {
        let request = set(What::RequestTimeout).map_or(Duration::ZERO, |(value, _)| value);
        let value = |set: Option<(Duration, &str)>, default| set.map_or(default, |(value, _)| value);
        // A Lease stores whole seconds.
        let lasts = Duration::from_secs(value(lease, LEASE_DURATION).as_secs());
        let gives_up = value(renew, RENEW_DEADLINE).saturating_add(request).saturating_add(value(retry, RETRY_PERIOD));
        if gives_up >= lasts {
            let timeout = if request.is_zero() { String::new() } else { format!(" + request time-out {}", seconds(request)) };
            let message = format!(
                "container {container:?}: renew deadline {}{timeout} + retry period {} is {}, and the lease lasts {}: another candidate may take over before this \
                 one has given up. Make the sum clearly smaller. A margin makes an overlap rarer and excludes none: only a write boundary does",
                seconds(value(renew, RENEW_DEADLINE)),
                seconds(value(retry, RETRY_PERIOD)),
                seconds(gives_up),
                seconds(lasts),
            );
            findings.push(rule::LEASE_TIMING_WITHOUT_MARGIN.finds(container, message));
        }
    }
    if let Some((lasts, place)) = lease.filter(|(lasts, _)| *lasts >= LONG) {
        let message = format!(
            "container {container:?}: the lease lasts {} ({place}): after a crash nobody works for so long. A long lease makes an overlap rarer and excludes \
             none: let a write boundary refuse the old owner, and keep the lease short",
            seconds(lasts)
        );
        findings.push(rule::LONG_LEASE.finds(container, message));
    }
    findings
}

fn seconds(duration: Duration) -> String {
    format!("{}s", duration.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(What, &str)]) -> Vec<&'static str> {
        let settings: Vec<_> = values
            .iter()
            .map(|(what, value)| Setting {
                what: *what,
                value: Some((*value).into()),
                place: "flag".into(),
                reference: None,
                certain: true,
            })
            .collect();
        about("c", &settings.iter().map(Cow::Borrowed).collect::<Vec<_>>()).into_iter().map(|finding| finding.rule.id).collect()
    }

    /// Cases A07 and H05.
    #[test]
    fn a_candidate_has_to_give_up_in_time() {
        use What::{LeaseDuration, RenewDeadline, RequestTimeout, RetryPeriod};
        let bad = ["lease-timing-without-margin"];
        assert_eq!(of(&[(RenewDeadline, "14"), (RequestTimeout, "5"), (RetryPeriod, "1"), (LeaseDuration, "20")]), bad);
        assert_eq!(of(&[(RenewDeadline, "13"), (RequestTimeout, "5"), (RetryPeriod, "1"), (LeaseDuration, "20")]), [""; 0]);
        assert_eq!(of(&[(LeaseDuration, "15s"), (RenewDeadline, "10s"), (RetryPeriod, "5s")]), bad);
        assert_eq!(of(&[(LeaseDuration, "137s"), (RenewDeadline, "107s"), (RetryPeriod, "26s")]), [""; 0]);
        // What is not set has client-go's value.
        assert_eq!(of(&[(LeaseDuration, "12s")]), bad);
        assert_eq!(of(&[(LeaseDuration, "30s")]), [""; 0]);
        assert_eq!(of(&[]), [""; 0]);
        assert_eq!(of(&[(LeaseDuration, "soon")]), [""; 0]);
        assert_eq!(of(&[(LeaseDuration, "24h")]), ["long-lease"]);
    }
}
