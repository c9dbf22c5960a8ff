//! What a declared statement says, from its text alone. Pure: no database is asked. What cannot be shown to touch one row of the declared
//! tables and nothing else is refused here, because it is never run.

use std::{collections::BTreeSet, fmt, ops::ControlFlow};

use sqlparser::{
    ast::{
        Assignment, AssignmentTarget, BinaryOperator, ConflictTarget, DataType, ExactNumberInfo, Expr, Ident, InTarget, Insert, ObjectName,
        OnConflictAction, OnInsert, SetExpr, Statement as Sql, TableFactor, TableObject, Update, Value, Visit, visit_expressions,
        visit_relations,
    },
    dialect::PostgreSqlDialect,
    keywords::Keyword,
    parser::Parser,
    tokenizer::{Token, TokenWithSpan, Tokenizer},
};

use super::decides::is_wide;
use crate::api::{ConditionalUpdate, PostgresTable, WritesPerEpoch};

/// How the statement compares the fence column with the epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compares {
    /// Not at all.
    Not,
    /// By a sub-query, which is not read again after waiting for the row.
    Elsewhere,
    /// `fence < epoch`.
    Less,
    /// `fence <= epoch`.
    LessOrEqual,
    /// In another form.
    Otherwise,
}

/// A statement that may be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Statement {
    /// The declared table that it writes to, by its place.
    pub(super) table: usize,
    /// The column that the key is compared with.
    pub(super) key: String,
    /// The column that the payload goes to.
    pub(super) payload: String,
    /// Every column that it writes.
    pub(super) columns: BTreeSet<String>,
    /// Whether it inserts when there is no row.
    pub(super) inserts: bool,
    pub(super) compares: Compares,
    /// Whether it stores the epoch in the fence column.
    pub(super) stores: bool,
    /// A table that it names together with its schema, if there is one.
    pub(super) qualified: Option<String>,
    /// The functions that it calls, as the server folds them.
    pub(super) functions: BTreeSet<String>,
    /// Everything that it takes for a column. What is none would be a function in another notation.
    pub(super) names: BTreeSet<String>,
    /// Why what one row shows need not hold for the others.
    pub(super) undecided: Option<String>,
}

/// Why a statement is not run: the end of a sentence that names the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// A SELECT decides and another statement writes.
    SelectThenUpdate,
    /// Anything else.
    Because(String),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SelectThenUpdate => f.write_str(
                "SelectThenUpdate: a SELECT decides and another statement writes, and an old owner wakes up between the two: declare the one \
                 statement that writes, with the comparison in it",
            ),
            Self::Because(why) => f.write_str(why),
        }
    }
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self::Because(why)
    }
}

/// Takes a declaration apart.
///
/// # Errors
/// Says what is wrong with the statement and what to do.
pub(super) fn parse(declared: &ConditionalUpdate, tables: &[PostgresTable], writes: WritesPerEpoch) -> Result<Statement, Refused> {
    take_apart(parsed(&declared.statement)?, declared, tables, writes)
}

/// The same, of a text that is parsed already.
pub(super) fn take_apart(
    mut statements: Vec<Sql>,
    declared: &ConditionalUpdate,
    tables: &[PostgresTable],
    writes: WritesPerEpoch,
) -> Result<Statement, Refused> {
    if statements.len() > 1 {
        return Err(if matches!(statements[0], Sql::Query(_)) {
            Refused::SelectThenUpdate
        } else {
            "it holds several statements: declare the one statement that writes, with the comparison in it".to_owned().into()
        });
    }
    let sql = statements.pop().ok_or_else(|| Refused::Because("is empty".to_owned()))?;
    let (functions, names) = check_expressions(&sql, declared)?;
    check_relations(&sql, tables)?;
    let reading = Reading { declared, tables, writes };
    let mut statement = match &sql {
        Sql::Update(update) => reading.update(update),
        Sql::Insert(insert) => reading.insert(insert),
        Sql::Query(_) => Err("neither changes a row by UPDATE nor by INSERT … ON CONFLICT: WITH and SELECT cannot be shown to touch one row only, and are not run".into()),
        _ => Err("is neither UPDATE nor INSERT … ON CONFLICT".into()),
    }?;
    (statement.functions, statement.names) = (functions, names);
    let qualified =
        visit_relations(&sql, |name| if name.0.len() > 1 { ControlFlow::Break(name.to_string()) } else { ControlFlow::Continue(()) });
    statement.qualified = qualified.break_value();
    Ok(statement)
}

/// The most keywords and operators that a statement may have: each can be one level of what is built of them, which is walked by recursion. A
/// statement that writes a hundred columns has no more.
const MAX_DEPTH: usize = 1000;

/// The statements of a text.
///
/// # Errors
/// When it is no PostgreSQL, or too much of it.
pub(super) fn parsed(statement: &str) -> Result<Vec<Sql>, String> {
    let failed = |error: &dyn fmt::Display| format!("does not parse as PostgreSQL: {error}");
    let dialect = PostgreSqlDialect {};
    let tokens = Tokenizer::new(&dialect, statement).tokenize_with_location().map_err(|error| failed(&error))?;
    let nests = |token: &TokenWithSpan| match &token.token {
        Token::Word(word) => word.keyword != Keyword::NoKeyword,
        Token::Whitespace(_)
        | Token::Comma
        | Token::Period
        | Token::LParen
        | Token::RParen
        | Token::Number(..)
        | Token::SingleQuotedString(_)
        | Token::Placeholder(_) => false,
        _ => true,
    };
    let count = tokens.iter().filter(|token| nests(token)).count();
    if count > MAX_DEPTH {
        return Err(format!("has {count} keywords and operators, and at most {MAX_DEPTH} are read: declare a shorter statement"));
    }
    Parser::new(&dialect).with_tokens_with_locations(tokens).parse_statements().map_err(|error| failed(&error))
}

/// Whether some statement calls for an advisory lock.
pub(super) fn take_a_lock(statements: &[Sql]) -> bool {
    let is_lock = |expression: &Expr| match expression {
        Expr::Function(function) => parts(&function.name)
            .and_then(|mut parts| parts.pop())
            .is_some_and(|name| name.starts_with("pg_advisory_") || name.starts_with("pg_try_advisory_")),
        _ => false,
    };
    statements.iter().any(|sql| names(sql, is_lock))
}

/// An identifier as the server folds it.
fn folded(ident: &Ident) -> String {
    if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() }
}

fn parts(name: &ObjectName) -> Option<Vec<String>> {
    name.0.iter().map(|part| part.as_ident().map(folded)).collect()
}

/// The place of the declared table that a name means, if it means exactly one.
fn place(name: &ObjectName, tables: &[PostgresTable]) -> Option<usize> {
    let parts = parts(name)?;
    let is_meant = |table: &PostgresTable| match parts.as_slice() {
        [name] => table.name == *name,
        [schema, name] => table.schema == *schema && table.name == *name,
        _ => false,
    };
    let mut found = tables.iter().enumerate().filter(|(_, table)| is_meant(table)).map(|(place, _)| place);
    found.next().filter(|_| found.next().is_none())
}

fn check_relations(sql: &Sql, tables: &[PostgresTable]) -> Result<(), String> {
    let unknown = visit_relations(sql, |name| match place(name, tables) {
        Some(_) => ControlFlow::Continue(()),
        None => ControlFlow::Break(name.to_string()),
    });
    match unknown {
        ControlFlow::Break(name) => Err(format!(
            "uses {name}, which is not exactly one of spec.postgres.tables: it is not run; list the table there, or write its schema"
        )),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Every parameter is declared and used; returns the functions, and the names of columns.
fn check_expressions(sql: &Sql, declared: &ConditionalUpdate) -> Result<(BTreeSet<String>, BTreeSet<String>), String> {
    let parameters = &declared.parameters;
    let known: BTreeSet<u8> =
        [Some(parameters.key), Some(parameters.payload), Some(parameters.epoch), parameters.holder].into_iter().flatten().collect();
    let (mut used, mut functions, mut columns) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let wrong = visit_expressions(sql, |expression| {
        match expression {
            Expr::Value(value) => {
                if let Value::Placeholder(text) = &value.value {
                    match text.strip_prefix('$').and_then(|number| number.parse::<u8>().ok()).filter(|number| known.contains(number)) {
                        Some(number) => drop(used.insert(number)),
                        None => {
                            return ControlFlow::Break(format!(
                                "has parameter {text}, of which spec.postgres.conditionalUpdate.parameters does not say what it is"
                            ));
                        }
                    }
                }
            }
            Expr::Function(function) => match parts(&function.name).as_deref() {
                Some([name]) => drop(functions.insert(name.clone())),
                Some([schema, name]) if schema == "pg_catalog" => drop(functions.insert(name.clone())),
                _ => {
                    return ControlFlow::Break(format!(
                        "calls {}, which is no built-in function: what it touches cannot be told, and it is not run",
                        function.name
                    ));
                }
            },
            Expr::Identifier(name) => drop(columns.insert(folded(name))),
            Expr::CompoundIdentifier(path) => columns.extend(path.last().map(folded)),
            Expr::CompoundFieldAccess { .. } => {
                return ControlFlow::Break(format!("uses {expression}, and what that calls cannot be told: it is not run"));
            }
            Expr::BinaryOp { op: op @ (BinaryOperator::PGCustomBinaryOperator(_) | BinaryOperator::Custom(_)), .. } => {
                return ControlFlow::Break(format!("uses operator {op}: what it does cannot be told, and it is not run"));
            }
            _ => {}
        }
        ControlFlow::Continue(())
    });
    if let ControlFlow::Break(wrong) = wrong {
        return Err(wrong);
    }
    match known.iter().find(|number| !used.contains(*number)) {
        Some(number) => Err(format!("does not use parameter ${number}, which spec.postgres.conditionalUpdate.parameters declares")),
        None => Ok((functions, columns)),
    }
}

/// Without brackets, and without casts that keep every value as it is: one with a length could shorten a key to another one.
pub(super) fn bare(expression: &Expr) -> &Expr {
    match expression {
        Expr::Nested(inner) => bare(inner),
        Expr::Cast { expr, data_type, .. } if keeps_values(data_type) => bare(expr),
        other => other,
    }
}

/// Without any cast: what a payload becomes is not compared.
fn uncast(expression: &Expr) -> &Expr {
    match expression {
        Expr::Nested(inner) | Expr::Cast { expr: inner, .. } => uncast(inner),
        other => other,
    }
}

const fn keeps_values(type_: &DataType) -> bool {
    matches!(
        type_,
        DataType::BigInt(None)
            | DataType::Int8(None)
            | DataType::Integer(None)
            | DataType::Int(None)
            | DataType::Int4(None)
            | DataType::Numeric(ExactNumberInfo::None)
            | DataType::Text
            | DataType::Varchar(None)
            | DataType::CharacterVarying(None)
            | DataType::Uuid
            | DataType::JSON
            | DataType::JSONB
    )
}

pub(super) fn is_parameter(expression: &Expr, number: u8) -> bool {
    matches!(bare(expression), Expr::Value(value) if value.value == Value::Placeholder(format!("${number}")))
}

pub(super) fn conjuncts(expression: &Expr) -> Vec<&Expr> {
    match expression {
        Expr::Nested(inner) => conjuncts(inner),
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => [conjuncts(left), conjuncts(right)].concat(),
        other => vec![other],
    }
}

/// Whether some expression in it is one.
fn names(tree: &impl Visit, is_one: impl Fn(&Expr) -> bool) -> bool {
    visit_expressions(tree, |part| if is_one(part) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }).is_break()
}

fn has_query(expression: &Expr) -> bool {
    names(expression, |part| matches!(part, Expr::Subquery(_) | Expr::Exists { .. } | Expr::In { target: InTarget::Subquery(_), .. }))
}

/// A declaration that is being taken apart.
pub(super) struct Reading<'a> {
    pub(super) declared: &'a ConditionalUpdate,
    tables: &'a [PostgresTable],
    writes: WritesPerEpoch,
}

impl Reading<'_> {
    fn update(&self, update: &Update) -> Result<Statement, String> {
        let TableFactor::Table { name, alias, .. } = &update.table.relation else {
            return Err("does not update a table by its name".into());
        };
        if !update.table.joins.is_empty() || update.from.is_some() {
            return Err("joins the table that it updates with others (FROM): which row it touches cannot be told, and it is not run".into());
        }
        let table = place(name, self.tables).ok_or("updates no declared table")?;
        // An alias hides the table's name.
        let own = alias.as_ref().map_or_else(|| self.tables[table].name.clone(), |alias| folded(&alias.name));
        let selection = update.selection.as_ref();
        let pinned = selection.into_iter().flat_map(conjuncts).find_map(|conjunct| self.pinned(conjunct, &own));
        let key = pinned.ok_or_else(|| {
            format!(
                "may touch more rows than one: it is not run; write WHERE key = ${} AND …, with no OR around it",
                self.declared.parameters.key
            )
        })?;
        self.read(table, key, false, &update.assignments, selection, &own)
    }

    fn insert(&self, insert: &Insert) -> Result<Statement, String> {
        let TableObject::TableName(name) = &insert.table else { return Err("does not insert into a table by its name".into()) };
        let table = place(name, self.tables).ok_or("inserts into no declared table")?;
        let Some(OnInsert::OnConflict(conflict)) = &insert.on else {
            return Err("is an INSERT without ON CONFLICT … DO UPDATE … WHERE: there is nothing that compares".into());
        };
        let OnConflictAction::DoUpdate(update) = &conflict.action else {
            return Err("does nothing on conflict: the epoch of a new owner is never stored".into());
        };
        let rows = match insert.source.as_ref().map(|query| query.body.as_ref()) {
            Some(SetExpr::Values(values)) => &values.rows,
            _ => return Err("inserts something else than one row of VALUES: it is not run".into()),
        };
        let [row] = rows.as_slice() else { return Err("inserts several rows: it is not run".into()) };
        let columns: Vec<String> = insert.columns.iter().filter_map(|name| parts(name)?.pop()).collect();
        let key = columns
            .iter()
            .zip(&row.content)
            .find(|(_, value)| is_parameter(value, self.declared.parameters.key))
            .map(|(column, _)| column.clone());
        let key = key.ok_or("does not insert the key's parameter")?;
        match &conflict.conflict_target {
            Some(ConflictTarget::Columns { columns, .. }) if columns.len() == 1 && folded(&columns[0]) == key => {}
            _ => return Err(format!("may update another row than the key's on a conflict: it is not run; write ON CONFLICT ({key})")),
        }
        let alias = insert.table_alias.as_ref().map(|alias| folded(&alias.alias));
        let own = alias.unwrap_or_else(|| self.tables[table].name.clone());
        let mut statement = self.read(table, key, true, &update.assignments, update.selection.as_ref(), &own)?;
        let inserted: Vec<(&str, &Expr)> = columns.iter().map(String::as_str).zip(&row.content).collect();
        statement.undecided = statement.undecided.or_else(|| self.inserted(&inserted, &statement.payload));
        statement.columns.extend(columns);
        Ok(statement)
    }

    /// What is wrong with the row that is inserted, and that the rest of the statement calls `excluded`: the end of a sentence that names the
    /// field. A row with another fence is the first one of an owner whom nobody can tell from an obsolete one.
    fn inserted(&self, row: &[(&str, &Expr)], payload: &str) -> Option<String> {
        let parameters = &self.declared.parameters;
        let given = |column: &str| row.iter().find(|(name, _)| *name == column).map(|(_, value)| *value);
        let fence = self.declared.fence_column.as_str();
        if !given(fence).is_some_and(|value| is_parameter(value, parameters.epoch) && is_wide(value)) {
            return Some(format!("does not insert the epoch as it is: write ${} in VALUES for {fence}", parameters.epoch));
        }
        if let Some((column, holder)) = self.declared.holder_column.as_deref().zip(parameters.holder)
            && !given(column).is_some_and(|value| is_parameter(value, holder))
        {
            return Some(format!("does not insert the holder as it is: write ${holder} in VALUES for {column}"));
        }
        let is_payload = |value: &Expr| is_parameter(uncast(value), parameters.payload);
        (!given(payload).is_none_or(is_payload))
            .then(|| format!("does not insert the payload as it is: write ${} in VALUES for {payload}", parameters.payload))
    }

    fn read(
        &self,
        table: usize,
        key: String,
        inserts: bool,
        assignments: &[Assignment],
        selection: Option<&Expr>,
        own: &str,
    ) -> Result<Statement, String> {
        let mut written = Vec::new();
        for assignment in assignments {
            let AssignmentTarget::ColumnName(name) = &assignment.target else {
                return Err("assigns to several columns at once: write them one by one".into());
            };
            written.push((parts(name).and_then(|mut parts| parts.pop()).ok_or("assigns to no column")?, &assignment.value));
        }
        if written.iter().any(|(column, _)| *column == key) {
            return Err(format!("changes its own key {key}: it is not run"));
        }
        let payload = written.iter().find(|(_, value)| is_parameter(uncast(value), self.declared.parameters.payload)).or_else(|| {
            let fence = &self.declared.fence_column;
            written.iter().find(|(column, value)| {
                inserts && column != fence && matches!(bare(value), Expr::CompoundIdentifier(path) if folded(&path[0]) == "excluded")
            })
        });
        let payload = payload
            .map(|(column, _)| column.clone())
            .ok_or("sets no column to the payload's parameter as it is: what it wrote could not be read back")?;
        let fence = &self.declared.fence_column;
        let undecided = self.undecided(selection, &written, own, self.writes);
        let stores =
            written.iter().any(|(column, value)| column == fence && Self::is_given(value, self.declared.parameters.epoch, Some(fence)));
        let columns = written.into_iter().map(|(column, _)| column).collect();
        Ok(Statement {
            table,
            key,
            payload,
            columns,
            inserts,
            compares: self.compares(selection, own),
            stores,
            functions: BTreeSet::new(),
            names: BTreeSet::new(),
            undecided,
            qualified: None,
        })
    }

    /// Whether it is a parameter, or the row that was to be inserted holds it.
    pub(super) fn is_given(value: &Expr, parameter: u8, excluded: Option<&str>) -> bool {
        let is_excluded = |path: &[Ident]| {
            let [table, column] = path else { return false };
            folded(table) == "excluded" && excluded.is_some_and(|wanted| folded(column) == wanted)
        };
        is_parameter(value, parameter) || matches!(bare(value), Expr::CompoundIdentifier(path) if is_excluded(path))
    }

    pub(super) fn is_own(expression: &Expr, column: Option<&str>, own: &str) -> Option<String> {
        let found = match bare(expression) {
            Expr::Identifier(name) => folded(name),
            Expr::CompoundIdentifier(path) if path.len() >= 2 && folded(&path[path.len() - 2]) == own => folded(path.last()?),
            _ => return None,
        };
        column.is_none_or(|wanted| wanted == found).then_some(found)
    }

    /// The column that a conjunct pins to the key.
    fn pinned(&self, conjunct: &Expr, own: &str) -> Option<String> {
        let Expr::BinaryOp { left, op: BinaryOperator::Eq, right } = conjunct else { return None };
        let key = self.declared.parameters.key;
        let (column, _) = [(left, right), (right, left)].into_iter().find(|(_, value)| is_parameter(value, key))?;
        // A cast of the column could let several rows be equal.
        matches!(column.as_ref(), Expr::Identifier(_) | Expr::CompoundIdentifier(_)).then(|| Self::is_own(column, None, own))?
    }

    fn compares(&self, selection: Option<&Expr>, own: &str) -> Compares {
        let Some(selection) = selection else { return Compares::Not };
        let (epoch, fence) = (self.declared.parameters.epoch, self.declared.fence_column.as_str());
        if let Some(compares) = conjuncts(selection).into_iter().find_map(|conjunct| self.comparison(conjunct, own)) {
            return compares;
        }
        match (names(selection, |expression| Self::is_given(expression, epoch, Some(fence))), has_query(selection)) {
            (false, _) => Compares::Not,
            (true, true) => Compares::Elsewhere,
            (true, false) => Compares::Otherwise,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Result<Statement, String> {
        let parameters = json!({"key": 1, "payload": 2, "epoch": 3});
        let declared = json!({"statement": text, "parameters": parameters, "fenceColumn": "last_fence"});
        let table = |name: &str| PostgresTable { schema: "public".into(), name: name.into() };
        parse(&serde_json::from_value(declared).unwrap(), &[table("report"), table("fences")], WritesPerEpoch::Once)
            .map_err(|why| why.to_string())
    }

    #[test]
    fn the_forms_of_a_guard_are_told_apart() {
        for (text, compares, stores) in [
            (
                "UPDATE report SET payload = $2::jsonb, last_fence = $3::bigint WHERE id = $1 AND last_fence < $3::bigint RETURNING id",
                Compares::Less,
                true,
            ),
            (
                "update public.report r set payload = $2, last_fence = $3 where $3 >= r.last_fence and (r.id = $1)",
                Compares::LessOrEqual,
                true,
            ),
            ("update report set payload = $2 where id = $1 and last_fence < $3", Compares::Less, false),
            ("update report set payload = $2, last_fence = $3 where id = $1", Compares::Not, true),
            (
                "update report set payload = $2, last_fence = $3 where id = $1 and (select max(f.n) from fences f) < $3",
                Compares::Elsewhere,
                true,
            ),
            ("update report set payload = $2, last_fence = $3 where id = $1 and coalesce(last_fence, 0) < $3", Compares::Otherwise, true),
        ] {
            let read = read(text).unwrap();
            assert_eq!(
                (read.compares, read.stores, read.inserts, read.key.as_str(), read.payload.as_str()),
                (compares, stores, false, "id", "payload"),
                "{text}"
            );
        }
        let upsert = read(
            "insert into report (id, payload, last_fence) values ($1, $2, $3) on conflict (id) do update \
                           set payload = excluded.payload, last_fence = excluded.last_fence where report.last_fence < excluded.last_fence",
        )
        .unwrap();
        assert_eq!((upsert.compares, upsert.stores, upsert.inserts, upsert.payload.as_str()), (Compares::Less, true, true, "payload"));
        assert_eq!(upsert.columns, ["id", "last_fence", "payload"].map(str::to_owned).into());
    }

    /// What would touch anything else than the row of the key is never run.
    #[test]
    fn what_is_not_run_is_refused_with_the_reason() {
        for (text, wanted) in [
            ("select 1; update report set payload = $2, last_fence = $3 where id = $1", "SelectThenUpdate"),
            ("update report set", "does not parse"),
            ("update report set payload = $2, last_fence = $3 where last_fence < $3 and $1 = $1", "more rows than one"),
            ("update report set payload = $2, last_fence = $3 where id = $1 and last_fence < $3 or true", "more rows than one"),
            ("update report set payload = $2, last_fence = $3 where id::text = $1 and last_fence < $3", "more rows than one"),
            ("update report set payload = $2, last_fence = $3 where f.id = $1 and last_fence < $3", "more rows than one"),
            ("update report set payload = $2, last_fence = $3, id = 'x' where id = $1", "changes its own key"),
            ("update other.report set payload = $2, last_fence = $3 where id = $1", "other.report"),
            ("update report set payload = $2, last_fence = $3 where id = $1 and exists (select from secrets)", "secrets"),
            ("update report set payload = $2, last_fence = $3 where id = $1 and public.f()", "public.f"),
            ("update report set payload = $2, last_fence = $3 where id = $1 and $4", "$4"),
            ("update report set payload = $2 where id = $1", "does not use parameter $3"),
            ("with x as (delete from report) update report set payload = $2, last_fence = $3 where id = $1", "not run"),
            ("insert into report (id, payload, last_fence) values ($1, $2, $3)", "without ON CONFLICT"),
            (
                "insert into report (id, payload, last_fence) values ($1, $2, $3) on conflict (payload) do update set payload = $2",
                "another row",
            ),
            ("update report r set payload = $2, last_fence = $3 from report where report.id = $1 and r.id = report.parent", "(FROM)"),
            ("update report r set payload = $2, last_fence = $3 where report.id = $1 and last_fence < $3", "more rows than one"),
            ("update report set payload = $2, last_fence = $3 where id = $1::varchar(4) and last_fence < $3", "more rows than one"),
            ("update report r set payload = $2, last_fence = $3 where id = $1 and (r).noted", "what that calls cannot be told"),
            ("delete from report where id = $1 and payload = $2 and last_fence < $3", "neither UPDATE"),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(wanted), "{text}: {said}");
        }
    }
}
