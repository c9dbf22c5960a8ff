//! Harmless negative probes on the real tables: writes that touch no row, under claims that must be refused, in transactions that are
//! rolled back.

use postgres_protocol::escape::{escape_identifier, escape_literal};

use super::{
    connect::{Session, failed},
    guard::{Installed, Table},
    names::Template,
};
use crate::boundary::{
    BackendError,
    proof::{Answers, Failure, Outcome, Probe},
};

/// Tries each statement kind that a writer may use on each table, as each writer.
pub(super) async fn on_tables(
    session: &Session,
    template: &Template,
    installed: &Installed,
    writers: &[String],
) -> Result<Answers, BackendError> {
    let mut answers = Answers::default();
    let roles: Vec<Option<&str>> = if writers.is_empty() { vec![None] } else { writers.iter().map(|w| Some(w.as_str())).collect() };
    let owner = installed.fence(&template.names).map(|fence| fence.owner());
    let (epoch, holder) = owner.map_or((0, String::new()), |(epoch, holder)| (epoch.get(), holder));
    let lock = &template.names.lock;
    let claims = [
        (Probe::MissingClaimRefused, None),
        (Probe::StaleRefused, Some(format!("{lock}={}@{holder}", epoch.saturating_sub(1)))),
        (Probe::ForeignClaimRefused, Some(format!("{lock}={epoch}@fencedlock-probe-{holder}"))),
        (Probe::EnormousRefused, Some(format!("{lock}={}@{holder}", crate::epoch::Epoch::MAX_VALUE))),
    ];
    for table in installed.tables.iter().filter(|table| table.kind != 'f') {
        for role in &roles {
            let statements = statements(session, table, *role).await?;
            let may_write = !statements.is_empty();
            let mut was_tried = false;
            for (probe, claim) in &claims {
                for statement in &statements {
                    if let Some(outcome) = try_one(session, *role, claim.as_deref(), statement, &table.name).await? {
                        answers.add(*probe, outcome);
                        was_tried = true;
                    }
                }
            }
            if may_write && !was_tried {
                let who = role.map_or_else(|| "the operator's role".to_owned(), |role| format!("role {role:?}"));
                answers.add(Probe::StaleRefused, Outcome::Inconclusive(format!("nothing could be tried on {} as {who}", table.name)));
            }
        }
    }
    Ok(answers)
}

/// Statements that fire every trigger of their kind and touch no row. TRUNCATE has none; that its trigger is there the catalogue says.
async fn statements(session: &Session, table: &Table, role: Option<&str>) -> Result<Vec<String>, BackendError> {
    let name = &table.name;
    let row = session
        .client
        .query_one(
            "select has_table_privilege(r, t, 'DELETE'), \
               (select attname::text from pg_attribute where attrelid = t and attnum > 0 and not attisdropped and attgenerated = '' \
                  and attidentity <> 'a' and has_column_privilege(r, t, attnum, 'UPDATE') order by attnum limit 1), \
               (select attname::text from pg_attribute where attrelid = t and attnum > 0 and not attisdropped and attgenerated = '' \
                  and attidentity <> 'a' and has_column_privilege(r, t, attnum, 'INSERT') order by attnum limit 1) \
             from (select coalesce($2, current_user::text)::name as r, $1::oid as t) x",
            &[&table.oid, &role],
        )
        .await
        .map_err(|error| failed(&error))?;
    // None of them reads anything: who may only write can be tried too.
    let mut statements = Vec::new();
    if row.get::<_, bool>(0) {
        statements.push(format!("delete from only {name} where false"));
    }
    if let Some(column) = row.get::<_, Option<String>>(1) {
        statements.push(format!("update only {name} set {} = default where false", escape_identifier(&column)));
    }
    if let Some(column) = row.get::<_, Option<String>>(2) {
        statements.push(format!("insert into {name} ({}) select null where false", escape_identifier(&column)));
    }
    Ok(statements)
}

/// `None` when the role may not do that at all, and so cannot do it wrongly.
async fn try_one(
    session: &Session,
    role: Option<&str>,
    claim: Option<&str>,
    statement: &str,
    table: &str,
) -> Result<Option<Outcome>, BackendError> {
    let role = role.map(|role| format!("set local role {};", escape_identifier(role))).unwrap_or_default();
    let set = claim.map(|claim| format!("set local fencedlock.claim = {};", escape_literal(claim))).unwrap_or_default();
    let said = session.client.simple_query(&format!("begin; {role} {set} {statement}")).await;
    session.run("rollback").await?;
    let what = || format!("{} on {table}", statement.split(' ').next().unwrap_or_default().to_uppercase());
    Ok(match said {
        Ok(_) => {
            let claim = claim.map_or_else(|| "without a claim".to_owned(), |claim| format!("with claim {claim:?}"));
            Some(Outcome::Failed(Failure::Accepted, format!("{} {claim} was accepted (it touched no row)", what())))
        }
        Err(error) => match error.as_db_error().map(|db| db.code().code()) {
            Some("FL001" | "FL002") => Some(Outcome::Passed),
            Some("42501") => None,
            _ => Some(Outcome::Inconclusive(format!("{}: {}", what(), failed(&error)))),
        },
    })
}
