//! Bad input (cases B15, G02, G03): the affected lock says what is wrong, field, object and next step; the others go on.

use std::sync::LazyLock;

use crate::support::{Lab, lab::condition, lease::at, plane::Plane};
use fencedlock::api::{FencedLock, conditions::lock as on};
use kube::{
    Api, ResourceExt,
    api::{DynamicObject, ListParams, PostParams},
    core::ApiResource,
};
use serde_json::{Value, json};

/// B15: whatever stands in a Lease, the operator survives it and says what it is.
#[tokio::test]
async fn absurd_holders_are_named_and_harm_nobody() {
    let lab = Lab::new().await;
    let operator = lab.operator().await;
    for (name, holder, wanted) in
        [("long", "x".repeat(200_000), "200000 bytes"), ("newline", "a\nb".into(), "U+000A"), ("escape", "a\u{1b}[31m".into(), "U+001B")]
    {
        lab.declare(name, "CorrectnessCritical").await;
        lab.lease(name).put(Some(&holder), Some(0), at(0)).await;
        let unusable = lab.until_condition(name, on::EPOCH_ACTIVE, "False", "HolderUnusable").await;
        assert!(unusable.message.contains(wanted) && unusable.message.len() < 1_000, "{}", unusable.message);
        let size = serde_json::to_string(&lab.locks().get(name).await.unwrap().status).unwrap().len();
        assert!(size < 8 * 1024, "a status has at most 8 KiB, this one has {size}");
    }
    // Odd, but carried byte for byte.
    for (n, holder) in ["a/b#c_ü💥", "'; DROP TABLE x; --", "\"quoted\"", " leading and trailing ", &"ü".repeat(256)].iter().enumerate()
    {
        let name = format!("odd-{n}");
        lab.declare(&name, "CorrectnessCritical").await;
        lab.lease(&name).put(Some(holder), Some(0), at(0)).await;
        let lock = lab.until_active(&name, 1, holder).await;
        assert_eq!(condition(&lock, on::OWNER_UNIQUE).status, "Unknown");
    }
    // `spec: {}` and no spec are nobody.
    for (name, spec) in [("empty", Some(Default::default())), ("none", None)] {
        lab.declare(name, "CorrectnessCritical").await;
        lab.lease(name).put_spec(spec).await;
        lab.until_condition(name, on::EPOCH_ACTIVE, "False", "Released").await;
    }
    // B11: no times at all; the takeover is still seen.
    lab.declare("timeless", "CorrectnessCritical").await;
    lab.lease("timeless").put(Some("a"), None, None).await;
    lab.until_active("timeless", 1, "a").await;
    lab.lease("timeless").put(Some("b"), None, None).await;
    lab.until_active("timeless", 2, "b").await;
    // The one that recovers: a usable holder gets its epoch.
    lab.lease("long").put(Some("short"), Some(1), at(1)).await;
    lab.until_active("long", 1, "short").await;
    operator.stop().await;
}

/// A committed CRD with a hole in it, as an old or edited one has: `change` gets the schema of the object.
fn install_loose_crd(plane: &Plane, plural: &str, change: impl Fn(&mut Value)) {
    let crd = fencedlock::api::crd::all().unwrap().into_iter().find(|crd| crd.spec.names.plural == plural).unwrap();
    let mut crd = serde_json::to_value(crd).unwrap();
    crd["apiVersion"] = json!("apiextensions.k8s.io/v1");
    crd["kind"] = json!("CustomResourceDefinition");
    change(&mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]);
    crd["spec"]["versions"][0].as_object_mut().unwrap().remove("selectableFields");
    plane.kubectl(&["apply", "--server-side", "--force-conflicts", "-f", "-"], &crd.to_string());
    plane.kubectl(&["wait", "--for=condition=Established", "--timeout=30s", &format!("crd/{plural}.fencedlock.dev")], "");
}

/// G03: malformed objects beside 20 good ones, on an API server whose CRD lets everything in.
/// G02: a CRD without `class` prunes it; absent never means efficiency-only.
#[tokio::test]
async fn malformed_locks_say_what_is_wrong_and_the_others_go_on() {
    static PLANE: LazyLock<Plane> = LazyLock::new(|| {
        let plane = Plane::start("loose");
        plane.install_crds();
        plane
    });
    for plural in ["fencedlocks", "writeboundaries"] {
        install_loose_crd(&PLANE, plural, |schema| {
            schema.as_object_mut().unwrap().remove("x-kubernetes-validations");
            schema["properties"]["spec"] = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        });
    }
    let lab = Lab::on(&PLANE).await;
    let kind = ApiResource::erase::<FencedLock>(&());
    let raw = Api::<DynamicObject>::namespaced_with(lab.admin.clone(), &lab.namespace, &kind);
    let lease = json!({"lease": {"name": "x"}});
    let bad = [
        ("no-spec-fields", json!({}), "spec.class: is required"),
        ("no-class", json!({"coordinator": lease}), "spec.class: is required"),
        ("unknown-class", json!({"class": "Important", "coordinator": lease}), "spec.class: is \"Important\""),
        ("null-lease", json!({"class": "CorrectnessCritical", "coordinator": {"lease": null}}), "exactly one of lease and external"),
        (
            "two-coordinators",
            json!({"class": "CorrectnessCritical", "coordinator": {"lease": {"name": "x"}, "external": {"system": "s", "token": "None"}}}),
            "exactly one of lease and external",
        ),
        ("number", json!({"class": 5, "coordinator": lease}), "spec.class: must be of type string"),
        ("list", json!({"class": "CorrectnessCritical", "coordinator": []}), "spec.coordinator"),
        (
            "floor",
            json!({"class": "CorrectnessCritical", "coordinator": {"lease": {"name": "y"}}, "epochFloor": "many"}),
            "spec.epochFloor: must be of type integer",
        ),
    ];
    let operator = lab.operator().await;
    for (name, spec, _) in &bad {
        let object = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": name}, "spec": spec});
        raw.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
    }
    for n in 0..20 {
        let name = format!("good-{n}");
        lab.declare(&name, "CorrectnessCritical").await;
        lab.lease(&name).put(Some("h"), Some(0), at(0)).await;
    }
    for n in 0..20 {
        lab.until_active(&format!("good-{n}"), 1, "h").await;
    }
    for (name, _, wanted) in &bad {
        let invalid = |object: Option<&DynamicObject>| object.is_some_and(|o| o.data["status"]["verdict"] == "Invalid");
        let found =
            tokio::time::timeout(crate::support::lab::LIMIT, kube::runtime::wait::await_condition(raw.clone(), name, invalid)).await;
        let object = found.unwrap_or_else(|_| panic!("{name} is not said to be Invalid")).unwrap().unwrap();
        let compliant = object.data["status"]["conditions"].as_array().unwrap().iter().find(|c| c["type"] == "Compliant").cloned().unwrap();
        let message = compliant["message"].as_str().unwrap();
        assert!(message.contains(wanted), "{name}: {message}");
        assert_eq!(compliant["status"], "False", "{name}");
    }
    for n in 0..20 {
        lab.lease(&format!("good-{n}")).put(Some("i"), Some(1), at(1)).await;
        lab.until_active(&format!("good-{n}"), 2, "i").await;
    }
    // A boundary that cannot be read counts for the lock that it names, listed or not: it may be the one that enforces.
    let accepted = json!({"lockRef": {"name": "charged"}, "type": "External", "external": {"receiver": "r"},
        "riskAcceptance": {"covers": ["CannotEnforce"], "acceptedBy": "a", "reason": "r", "expires": "2100-01-01T00:00:00Z"}});
    lab.declare_boundary("accepted", accepted).await;
    let charged = json!({"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "charged"}}, "writeBoundaries": ["accepted"]});
    lab.declare_spec("charged", charged).await;
    lab.lease("charged").put(Some("h"), Some(0), at(0)).await;
    lab.until_active("charged", 1, "h").await;
    let teapot = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "WriteBoundary", "metadata": {"name": "teapot", "namespace": lab.namespace},
        "spec": {"lockRef": {"name": "charged"}, "type": "Teapot"}});
    lab.plane.kubectl(&["create", "-f", "-"], &teapot.to_string());
    let invalid = lab.until("charged", "the malformed boundary", |s| s.reason.as_deref() == Some("BoundaryInvalid")).await;
    assert!(condition(&invalid, on::COMPLIANT).message.contains("\"teapot\""), "{}", condition(&invalid, on::COMPLIANT).message);
    assert_eq!(condition(&invalid, on::EPOCH_ACTIVE).status, "True", "what is active stays so");
    lab.lease("charged").put(Some("i"), Some(1), at(1)).await;
    let waits = lab.until_condition("charged", on::EPOCH_ACTIVE, "False", "FenceUnreadable").await;
    assert!(waits.message.contains("\"teapot\""), "{}", waits.message);
    lab.plane.kubectl(&["delete", "writeboundary", "teapot", "-n", &lab.namespace], "");
    lab.until_active("charged", 2, "i").await;

    // What was said once is not written again and again.
    let versions = || async {
        raw.list(&ListParams::default()).await.unwrap().items.into_iter().map(|o| (o.name_any(), o.resource_version())).collect::<Vec<_>>()
    };
    lab.quiet(&operator, "no-class").await;
    let before = versions().await;
    lab.lease("good-0").renew().await;
    lab.quiet(&operator, "no-class").await;
    assert_eq!(versions().await, before);

    // Mended, a lock is judged like any other, and its epochs begin.
    let mended = json!({"apiVersion": "fencedlock.dev/v1alpha1", "kind": "FencedLock", "metadata": {"name": "no-class", "namespace": lab.namespace},
        "spec": {"class": "CorrectnessCritical", "purpose": "p", "coordinator": {"lease": {"name": "mended"}}}});
    lab.plane.kubectl(&["replace", "-f", "-"], &mended.to_string());
    lab.lease("mended").put(Some("m"), Some(0), at(0)).await;
    lab.until_active("no-class", 1, "m").await;
    operator.stop().await;
}
