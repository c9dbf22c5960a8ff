//! Bad input: it is said which field is wrong and what to do, without the secret; never proven, never violated.

use std::{collections::BTreeSet, sync::Arc};

use crate::support::{Db, Server};
use fencedlock::{
    api::{GuardMode, PostgresBoundary},
    boundary::{
        Ask, Backend, BackendError,
        postgres::{Access, Postgres, Which},
    },
};
use serde_json::{Value, json};

fn boundary(url: &str, authorities: Option<Vec<u8>>, spec: Value) -> Postgres {
    let spec: PostgresBoundary = serde_json::from_value(spec).unwrap();
    let access = Access::Given { url: url.to_owned(), authorities };
    let which = Which { namespace: "team", boundary: "db", lock: "writer", uid: "uid", generation: 1 };
    Postgres::new(access, which, spec, GuardMode::Enforce, Arc::default())
}

async fn error(url: &str, spec: Value) -> BackendError {
    match boundary(url, None, spec).examine(&Ask::default()).await {
        Ok(examined) => BackendError::Refused(examined.unfinished.expect("it ended early")),
        Err(error) => error,
    }
}

#[tokio::test]
async fn what_is_wrong_is_named_by_its_field() {
    let db = Db::new().await;
    let (good, port) = (db.url(&db.operator), db.port);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut spec = db.spec();
        change(&mut spec);
        spec
    };
    let missing_table = with(&|spec| spec["tables"][0]["name"] = "nowhere".into());
    let missing_schema = with(&|spec| spec["tables"][0]["schema"] = "nowhere".into());
    let missing_role = with(&|spec| spec["writerRoles"] = json!(["nobody_at_all"]));
    let not_a_member = with(&|spec| spec["writerRoles"] = json!(["pg_monitor"]));
    db.admin.batch_execute("create view v as select 1 as id").await.unwrap();
    let a_view = with(&|spec| spec["tables"][0]["name"] = "v".into());
    let secret = "hunter2";
    for (url, spec, wanted) in [
        (good.replace(&format!(":{}@", db.operator), &format!(":{secret}@")), db.spec(), "password authentication failed"),
        (good.replace(&format!("/{}?", db.name), "/nowhere?"), db.spec(), "nowhere"),
        (good.replace(&port.to_string(), "1"), db.spec(), "127.0.0.1:1"),
        (good.replace("127.0.0.1", "no-such-host.invalid"), db.spec(), "no-such-host.invalid"),
        (good.clone(), missing_table, "spec.postgres.tables[0]: there is no table \"public\".\"nowhere\""),
        (good.clone(), missing_schema, "spec.postgres.tables[0]: there is no table \"nowhere\".\"t\""),
        (good.clone(), a_view, "spec.postgres.tables[0]: \"public\".\"v\" is no table"),
        (good.clone(), missing_role, "spec.postgres.writerRoles[0]: there is no role \"nobody_at_all\""),
        (good.clone(), not_a_member, "spec.postgres.writerRoles[0]: the operator's role cannot become"),
        (
            db.url(&db.writer),
            json!({"connection": {"secretKeyRef": {"name": "s", "key": "url"}}, "tables": [{"schema": "public", "name": "t"}]}),
            "fencedlock guard print",
        ),
    ] {
        let said = error(&url, spec).await.to_string();
        assert!(said.contains(wanted), "{wanted}: {said}");
        assert!(!said.contains(secret) && !said.contains("postgresql://"), "{said}");
    }
}

/// TLS by the URL's sslmode, as libpq does it.
#[tokio::test]
async fn tls_follows_the_urls_sslmode() {
    let server = Server::shared();
    let db = Db::on(server).await;
    let authority = std::fs::read(server.dir.join("ca.crt")).expect("the server has a certificate");
    let reaches = async |mode: &str, host: &str, authorities: Option<&[u8]>| {
        let url = db.url(&db.operator).replace("sslmode=disable", &format!("sslmode={mode}")).replace("127.0.0.1", host);
        let observed = boundary(&url, authorities.map(<[u8]>::to_vec), db.spec()).observe().await;
        observed.map(|_| ()).map_err(|error| error.to_string())
    };
    for mode in ["disable", "allow", "prefer", "require"] {
        assert_eq!(reaches(mode, "127.0.0.1", None).await, Ok(()), "{mode}");
    }
    for (mode, host) in [("require", "127.0.0.1"), ("verify-ca", "127.0.0.1"), ("verify-ca", "localhost"), ("verify-full", "localhost")] {
        assert_eq!(reaches(mode, host, Some(&authority)).await, Ok(()), "{mode} {host}");
    }
    let wrong_name = reaches("verify-full", "127.0.0.1", Some(&authority)).await.unwrap_err();
    assert!(wrong_name.contains("certificate"), "{wrong_name}");
    let other = Server::start("tls", &[]);
    let stranger = std::fs::read(other.dir.join("ca.crt")).unwrap();
    for mode in ["require", "verify-ca", "verify-full"] {
        let refused = reaches(mode, "localhost", Some(&stranger)).await.unwrap_err();
        assert!(refused.contains("certificate"), "{mode}: {refused}");
    }
    let modes: BTreeSet<_> = crate::support::texts(&db.admin, "select ssl::text from pg_stat_ssl where pid = pg_backend_pid()").await;
    assert_eq!(modes, ["false".to_owned()].into(), "the tests' own connection is not what was looked at");
}
