//! What is served beside the work: `/livez`, `/readyz`, `/metrics`; and connections that die without a word.

use std::time::Duration;

use crate::support::{
    Lab,
    lab::{LIMIT, Running},
    lease::at,
    proxy::Proxy,
};
use fencedlock::operator::{Scope, Settings};
use kube::Client;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// The status and the body of what an operator serves.
pub async fn get(operator: &Running, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(operator.admin).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// Asks until the answer fulfils something.
pub async fn until(operator: &Running, path: &str, wanted: impl Fn(u16, &str) -> bool) -> String {
    let deadline = tokio::time::Instant::now() + LIMIT;
    loop {
        let (status, body) = get(operator, path).await;
        if wanted(status, &body) {
            return body;
        }
        assert!(tokio::time::Instant::now() < deadline, "{path}: {status}\n{body}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn metrics_count_verdicts_terms_and_passes_and_name_no_object() {
    let lab = Lab::new().await;
    let operator = lab.operator().await;
    until(&operator, "/readyz", |status, _| status == 200).await;
    assert_eq!(get(&operator, "/livez").await, (200, "ok\n".into()));
    lab.declare("secret-project", "CorrectnessCritical").await;
    lab.declare("cache", "EfficiencyOnly").await;
    lab.declare_boundary("db", json!({"lockRef": {"name": "nobody"}, "type": "External", "external": {"receiver": "mail"}})).await;
    let lease = lab.lease("secret-project");
    lease.put(Some("x"), Some(0), at(0)).await;
    lab.until_active("secret-project", 1, "x").await;
    lease.put(Some("y"), Some(1), at(1)).await;
    lab.until_active("secret-project", 2, "y").await;
    let wanted = [
        r#"fencedlock_locks{class="CorrectnessCritical",verdict="Unenforced"} 1"#,
        r#"fencedlock_locks{class="EfficiencyOnly",verdict="NotRequired"} 1"#,
        r#"fencedlock_boundaries{type="External",verdict="CannotEnforce"} 1"#,
        &format!(r#"fencedlock_build_info{{version="{}"}} 1"#, env!("CARGO_PKG_VERSION")),
        "fencedlock_ownership_transitions_total 2",
        "fencedlock_grant_latency_seconds_count 2",
        "fencedlock_lease_renewal_failures_total 0",
        r#"fencedlock_reconciles_total{kind="FencedLock"}"#,
        r#"fencedlock_watch_last_event_timestamp_seconds{kind="leases.coordination.k8s.io"}"#,
        "# EOF",
    ];
    let text = until(&operator, "/metrics", |_, text| wanted.iter().all(|line| text.contains(line))).await;
    for name in ["secret-project", "cache", lab.namespace.as_str()] {
        assert!(!text.contains(name), "an object's name is no label: {text}");
    }
}

/// The dashboard and the alerts speak of metrics that exist.
#[tokio::test]
async fn what_is_charted_and_alerted_on_is_served() {
    let lab = Lab::new().await;
    let operator = lab.operator().await;
    until(&operator, "/readyz", |status, _| status == 200).await;
    let served = until(&operator, "/metrics", |_, text| text.contains("# EOF")).await;
    let chart = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("charts/fencedlock/files");
    for file in ["rules.yaml", "dashboard.json"] {
        let text = std::fs::read_to_string(chart.join(file)).unwrap();
        let names = text.split(|c: char| !c.is_ascii_lowercase() && c != '_').filter(|word| word.starts_with("fencedlock_"));
        let family = |name: &str| ["_total", "_bucket", "_info"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned();
        let names: std::collections::BTreeSet<_> = names.map(family).collect();
        assert!(names.len() >= 4, "{file}: {names:?}");
        for name in names {
            assert!(served.contains(&format!("# TYPE {name} ")), "{file} speaks of {name}, which is not served:\n{served}");
        }
    }
}

/// A Lease that nobody renews is counted when it runs out, and nothing else happens: the operator decides no expiry.
#[tokio::test]
async fn a_lease_that_runs_out_is_counted() {
    let lab = Lab::new().await;
    let operator = lab.operator().await;
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    let mut object = lease.put(Some("x"), Some(0), at(0)).await;
    object.spec.as_mut().unwrap().lease_duration_seconds = Some(1);
    lease.put_spec(object.spec).await;
    lab.until_active("a", 1, "x").await;
    until(&operator, "/metrics", |_, text| text.contains("fencedlock_lease_renewal_failures_total 1")).await;
    let lock = lab.until_active("a", 1, "x").await;
    lease.renew().await;
    until(&operator, "/metrics", |_, text| text.contains("fencedlock_lease_renewal_failures_total 2")).await;
    assert_eq!(lab.locks().get("a").await.unwrap().metadata.resource_version, lock.metadata.resource_version);
}

/// A client of the operator behind a proxy, and its settings: watches that the API server ends after two seconds.
async fn behind(lab: &Lab, read_timeout: Option<Duration>) -> (Proxy, Client, Settings) {
    let (proxy, client) = lab.operator_behind(read_timeout).await;
    let settings = Settings {
        scope: Scope::Namespaces(vec![lab.namespace.clone()]),
        watch_timeout: Duration::from_secs(2),
        watch_grace: Duration::from_secs(2),
        ..Settings::default()
    };
    (proxy, client, settings)
}

/// A load balancer forgets idle connections and tells nobody. The operator gives them up by itself, and misses no term.
#[tokio::test]
async fn a_connection_that_dies_without_a_word_is_given_up() {
    let lab = Lab::new().await;
    let (proxy, client, settings) = behind(&lab, Some(Duration::from_secs(4))).await;
    let operator = lab.operator_set(client, settings, lab.built_in().await);
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    proxy.drop_silently();
    lease.put(Some("y"), Some(1), at(1)).await;
    lab.until_active("a", 2, "y").await;
    until(&operator, "/livez", |status, _| status == 200).await;
}

/// The twin: without a time-out on reads the watches hang for ever. That is what `/livez` is for.
#[tokio::test]
async fn watches_that_hang_fail_the_liveness_probe() {
    let lab = Lab::new().await;
    let (proxy, client, settings) = behind(&lab, None).await;
    let operator = lab.operator_set(client, settings, lab.built_in().await);
    lab.declare("a", "CorrectnessCritical").await;
    lab.lease("a").put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    // Watches end and are asked for again, and that is fine.
    until(&operator, "/livez", |status, _| status == 200).await;
    proxy.drop_silently();
    let body = until(&operator, "/livez", |status, _| status == 503).await;
    assert!(body.contains("the watch of ") && body.contains(&lab.namespace) && body.contains("gave no sign"), "{body}");
}

/// Cut off from the API server, the operator says so, and catches up when there is a way again: the same owner with another one in
/// between is a term of its own (cases G13, G05).
#[tokio::test]
async fn an_operator_that_was_cut_off_says_so_and_catches_up() {
    let lab = Lab::new().await;
    let (proxy, client, settings) = behind(&lab, Some(Duration::from_secs(4))).await;
    let operator = lab.operator_set(client, settings, lab.built_in().await);
    lab.declare("a", "CorrectnessCritical").await;
    let lease = lab.lease("a");
    lease.put(Some("x"), Some(0), at(0)).await;
    lab.until_active("a", 1, "x").await;
    proxy.refuse(true);
    lease.put(Some("y"), Some(1), at(1)).await;
    lease.put(Some("x"), Some(2), at(2)).await;
    until(&operator, "/livez", |status, _| status == 503).await;
    lab.until_active("a", 1, "x").await;
    proxy.refuse(false);
    lab.until_active("a", 2, "x").await;
    until(&operator, "/livez", |status, _| status == 200).await;
}
