//! The managed guard as it stands in the database: read from the catalogue, and compared with what it should be. Nothing here changes
//! anything; `install` does.

use tokio_postgres::{GenericClient, types::Oid};

use super::{
    connect::failed,
    names::{FUNCTIONS, Names, SCHEMA, Template},
};
use crate::{
    api::{GuardMode, PostgresTable},
    boundary::{BackendError, Fence},
    epoch::{Epoch, Holder},
};

/// What the catalogue says about one table that has to be guarded: one that is declared, or a partition or child of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) oid: Oid,
    /// As it is written in SQL.
    pub(super) name: String,
    /// The place of the declared table that it is or descends from, in `spec.postgres.tables`.
    pub(super) declared: usize,
    /// Whether it is declared itself.
    pub(super) is_root: bool,
    /// `pg_class.relkind`.
    pub(super) kind: char,
    /// The trigger of this guard, when there is one of its name.
    pub(super) trigger: Option<Trigger>,
    /// Guards of other boundaries on it, by the names of their triggers.
    pub(super) others: Vec<String>,
}

/// A trigger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trigger {
    pub(super) oid: Oid,
    /// `pg_trigger.tgenabled`.
    enabled: char,
    /// `pg_trigger.tgtype`.
    kind: i16,
    /// Whether it calls the guard, always and for every column.
    is_plain: bool,
}

/// BEFORE, and INSERT, DELETE, UPDATE and TRUNCATE, for each statement: the bits of `pg_trigger.tgtype`.
const BEFORE_EVERY_STATEMENT: i16 = 2 | 4 | 8 | 16 | 32;

impl Trigger {
    /// What is wrong with it.
    pub(super) fn wrong(&self) -> Option<&'static str> {
        match (self.enabled, self.kind) {
            ('D', _) => Some("is disabled"),
            ('A', BEFORE_EVERY_STATEMENT) if self.is_plain => None,
            ('A', _) => Some("was altered"),
            _ => Some("is not ALWAYS enabled, so session_replication_role goes around it"),
        }
    }
}

/// The row of the fence table that says what was installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) lock: String,
    pub(super) epoch: i64,
    pub(super) claim: Option<String>,
    /// The epoch in its sequence, 0 when it was never set.
    pub(super) reached: i64,
    pub(super) refused: i64,
    pub(super) nonce: String,
    declared: String,
    pub(super) generation: i64,
    guard: String,
    guarded: Vec<Oid>,
    pub(super) oid: Oid,
    pub(super) is_unlogged: bool,
}

/// Everything that is there of a guard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Installed {
    /// `None` when there is no fence.
    pub(super) record: Option<Record>,
    /// The bodies of the functions in the order of [`FUNCTIONS`]; `None` when one is missing or is not SECURITY DEFINER.
    bodies: Option<Vec<String>>,
    pub(super) tables: Vec<Table>,
    /// Whether the canary stands behind the same guard.
    canary: bool,
}

/// The generation of a guard that was installed by hand.
pub(super) const BY_HAND: i64 = 0;

/// What is wrong with an installed guard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    /// It was installed, and somebody removed or altered a part of it: what.
    pub(super) altered: Vec<String>,
    /// Something has to be installed that was not there before.
    pub(super) is_incomplete: bool,
    /// Partitions and children that came later and have no trigger yet.
    pub(super) unguarded: Vec<String>,
}

/// One version of a declaration: the WriteBoundary's uid and its generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Declaration {
    pub(super) uid: String,
    pub(super) generation: i64,
}

impl Record {
    /// The fence that the row and its sequence stand for; `None` before the first owner. A sequence that is ahead of its row belongs to
    /// nobody yet.
    pub(super) fn fence(&self, names: &Names) -> Option<Fence> {
        let epoch = u64::try_from(self.epoch.max(self.reached)).ok().and_then(|epoch| Epoch::new(epoch).ok())?;
        let prefix = format!("{}{}@", names.prefix(), self.epoch);
        let holder = self.claim.as_deref().filter(|_| self.epoch == self.reached).and_then(|claim| claim.strip_prefix(&prefix));
        Some(Fence { epoch, holder: holder.and_then(|holder| Holder::new(holder).ok()) })
    }
}

impl Installed {
    /// The fence, if there is one that ever had an owner.
    pub(super) fn fence(&self, names: &Names) -> Option<Fence> {
        self.record.as_ref().and_then(|record| record.fence(names))
    }

    /// Refuses when a later version of the same declaration is installed: whoever has the earlier one lags behind, and must not bring it
    /// back.
    pub(super) fn is_not_later_than(&self, declaration: &Declaration) -> Result<(), BackendError> {
        let theirs = self.record.as_ref().filter(|record| record.declared == declaration.uid).map_or(0, |record| record.generation);
        if theirs > declaration.generation {
            let ours = declaration.generation;
            return Err(BackendError::Refused(format!(
                "generation {theirs} of this boundary is installed already, and this is generation {ours}"
            )));
        }
        Ok(())
    }

    /// Compares with what should be there. Pure.
    pub(super) fn differences(&self, template: &Template, generation: i64) -> Differences {
        let mut found = Differences::default();
        let Some(record) = &self.record else {
            return Differences { is_incomplete: true, ..found };
        };
        // What somebody installed by hand is for every generation.
        let is_of_this = record.generation == generation || record.generation == BY_HAND;
        let was_installed = !record.guard.is_empty() && is_of_this;
        let actual = self.hash(template);
        if actual.as_ref() != Some(&record.guard) && !record.guard.is_empty() {
            found.altered.push("a function of the guard is missing or was altered".to_owned());
        }
        found.is_incomplete |= actual.as_deref() != Some(template.expected_hash().as_str()) || !is_of_this;
        found.is_incomplete |= record.lock != template.names.lock || (template.mode == GuardMode::Enforce && !self.canary);
        for table in &self.tables {
            let name = &table.name;
            match table.trigger.as_ref().map(Trigger::wrong) {
                Some(None) => {}
                Some(Some(wrong)) => {
                    found.is_incomplete = true;
                    found.altered.push(format!("the trigger on {name} {wrong}"));
                }
                None if record.guarded.contains(&table.oid) => {
                    found.is_incomplete = true;
                    found.altered.push(format!("the trigger on {name} is gone"));
                }
                None => {
                    found.is_incomplete = true;
                    if was_installed && table.is_root {
                        found.altered.push(format!("{name} is another table than the one that was guarded, and has no trigger"));
                    } else if was_installed {
                        found.unguarded.push(name.clone());
                    }
                }
            }
        }
        found
    }

    /// The hash of the guard as it is: `None` when a part is missing.
    pub(super) fn hash(&self, template: &Template) -> Option<String> {
        self.bodies.as_ref().map(|bodies| template.hash(bodies.iter().map(String::as_str)))
    }
}

/// Reads what is there. Changes nothing.
pub(super) async fn read(client: &impl GenericClient, template: &Template, tables: &[PostgresTable]) -> Result<Installed, BackendError> {
    let tables = read_tables(client, template, tables).await?;
    let bodies = bodies(client, template).await?;
    let canary = Template { names: template.names.canary(), ..template.clone() };
    let thing = PostgresTable { schema: SCHEMA.to_owned(), name: canary.names.plain("thing") };
    let is_guarded =
        |tables: Vec<Table>| tables.iter().all(|table| table.trigger.as_ref().is_some_and(|trigger| trigger.wrong().is_none()));
    let is_made = self::bodies(client, &canary)
        .await?
        .is_some_and(|bodies| canary.hash(bodies.iter().map(String::as_str)) == template.expected_hash());
    let canary = is_made && read_tables(client, &canary, &[thing]).await.is_ok_and(is_guarded);
    Ok(Installed { record: record(client, &template.names).await?, bodies, tables, canary })
}

/// The bodies of the functions in the order of [`FUNCTIONS`].
async fn bodies(client: &impl GenericClient, template: &Template) -> Result<Option<Vec<String>>, BackendError> {
    let names: Vec<_> = FUNCTIONS.map(|function| template.names.plain(function)).to_vec();
    let functions = client
        .query(
            "select p.prosrc from pg_proc p join pg_namespace n on n.oid = p.pronamespace join pg_language l on l.oid = p.prolang \
             where n.nspname = $1 and p.proname::text = any($2) and p.prosecdef and l.lanname = 'plpgsql' \
             and p.proconfig = array['search_path=pg_catalog, pg_temp'] order by array_position($2, p.proname::text)",
            &[&SCHEMA, &names],
        )
        .await
        .map_err(|error| failed(&error))?;
    let bodies: Vec<String> = functions.iter().map(|row| row.get(0)).collect();
    Ok((bodies.len() == FUNCTIONS.len()).then_some(bodies))
}

/// The fence's row; `None` when there is no fence.
pub(super) async fn record(client: &impl GenericClient, names: &Names) -> Result<Option<Record>, BackendError> {
    let there = client
        .query_opt(
            "select c.oid, c.relpersistence = 'u' from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = $1 and c.relname = $2",
            &[&SCHEMA, &names.plain("fence")],
        )
        .await
        .map_err(|error| failed(&error))?;
    let Some(there) = there else { return Ok(None) };
    let sql = format!(
        "select f.lock, f.epoch, f.claim, coalesce(pg_sequence_last_value('{epoch}'::regclass), 0), \
         coalesce(pg_sequence_last_value('{refused}'::regclass), 0), f.nonce, f.declared, f.generation, f.guard, f.guarded from {fence} f",
        epoch = names.object("epoch"),
        refused = names.object("refused"),
        fence = names.object("fence"),
    );
    let row = client.query_opt(&sql, &[]).await.map_err(|error| failed(&error))?;
    Ok(row.map(|row| Record {
        lock: row.get(0),
        epoch: row.get(1),
        claim: row.get(2),
        reached: row.get(3),
        refused: row.get(4),
        nonce: row.get(5),
        declared: row.get(6),
        generation: row.get(7),
        guard: row.get(8),
        guarded: row.get(9),
        oid: there.get(0),
        is_unlogged: there.get(1),
    }))
}

async fn read_tables(client: &impl GenericClient, template: &Template, declared: &[PostgresTable]) -> Result<Vec<Table>, BackendError> {
    let (schemas, names): (Vec<_>, Vec<_>) = declared.iter().map(|table| (table.schema.as_str(), table.name.as_str())).unzip();
    let rows = client
        .query(
            "with recursive declared as ( \
               select c.oid, d.place, true as is_root from unnest($1::text[], $2::text[]) with ordinality as d(schema, name, place) \
               join pg_namespace n on n.nspname = d.schema join pg_class c on c.relnamespace = n.oid and c.relname = d.name \
             ), guarded as ( \
               select oid, place, is_root from declared \
               union select i.inhrelid, g.place, false from guarded g join pg_inherits i on i.inhparent = g.oid \
             ) \
             select distinct on (g.oid) g.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), g.place, \
               g.oid in (select oid from declared), c.relkind::text, t.oid, t.tgenabled::text, t.tgtype, \
               t.tgqual is null and t.tgattr = '' and t.tgnargs = 0 and f.proname = $4 and fn.nspname = $5, \
               array(select o.tgname::text from pg_trigger o join pg_proc op on op.oid = o.tgfoid join pg_namespace os on os.oid = op.pronamespace \
                     where o.tgrelid = g.oid and os.nspname = $5 and op.proname <> $4 and not o.tgisinternal order by 1) \
             from guarded g join pg_class c on c.oid = g.oid join pg_namespace n on n.oid = c.relnamespace \
             left join pg_trigger t on t.tgrelid = g.oid and t.tgname = $3 and not t.tgisinternal \
             left join pg_proc f on f.oid = t.tgfoid left join pg_namespace fn on fn.oid = f.pronamespace \
             order by g.oid, g.is_root desc, g.place",
            &[&schemas, &names, &template.names.trigger(), &template.names.plain("guard"), &SCHEMA],
        )
        .await
        .map_err(|error| failed(&error))?;
    let letter = |text: Option<String>| text.and_then(|text| text.chars().next());
    let mut tables = Vec::new();
    for row in rows {
        let trigger = row.get::<_, Option<Oid>>(5).map(|oid| Trigger {
            oid,
            enabled: letter(row.get(6)).unwrap_or_default(),
            kind: row.get(7),
            is_plain: row.get::<_, Option<bool>>(8).unwrap_or_default(),
        });
        tables.push(Table {
            oid: row.get(0),
            name: row.get(1),
            declared: usize::try_from(row.get::<_, i64>(2) - 1).unwrap_or_default(),
            is_root: row.get(3),
            kind: letter(row.get(4)).unwrap_or_default(),
            trigger,
            others: row.get(9),
        });
    }
    for (place, table) in declared.iter().enumerate() {
        let field = format!("spec.postgres.tables[{place}]");
        let name = format!("\"{}\".\"{}\"", table.schema, table.name);
        let found = tables.iter().find(|found| found.is_root && found.declared == place);
        let duplicate = || declared[..place].contains(table);
        match found {
            None if duplicate() => {}
            None => return Err(BackendError::Refused(format!("{field}: there is no table {name}: create it, or correct the name"))),
            Some(found) if !matches!(found.kind, 'r' | 'p') => {
                return Err(BackendError::Refused(format!("{field}: {name} is no table: name the table that the writes land in")));
            }
            Some(_) => {}
        }
    }
    Ok(tables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(mode: GuardMode) -> Template {
        Template { names: Names::new("team", "db", "writer"), mode, operator: "operator".into(), defects: Vec::new() }
    }

    fn table(oid: Oid, is_root: bool, enabled: Option<char>) -> Table {
        let trigger = enabled.map(|enabled| Trigger { oid: oid + 1000, enabled, kind: BEFORE_EVERY_STATEMENT, is_plain: true });
        Table { oid, name: format!("public.t{oid}"), declared: 0, is_root, kind: 'r', trigger, others: Vec::new() }
    }

    fn installed(tables: Vec<Table>) -> Installed {
        let template = template(GuardMode::Enforce);
        let record = Record {
            lock: "team/writer".into(),
            epoch: 7,
            claim: None,
            reached: 7,
            refused: 0,
            nonce: "n".into(),
            declared: "uid".into(),
            generation: 1,
            guard: template.expected_hash(),
            guarded: vec![1],
            oid: 99,
            is_unlogged: false,
        };
        Installed { record: Some(record), bodies: Some(FUNCTIONS.map(|f| template.body(f)).to_vec()), tables, canary: true }
    }

    fn found(installed: &Installed, mode: GuardMode, generation: i64) -> Differences {
        installed.differences(&template(mode), generation)
    }

    #[test]
    fn what_was_taken_away_is_told_from_what_is_to_come() {
        let good = installed(vec![table(1, true, Some('A'))]);
        assert_eq!(found(&good, GuardMode::Enforce, 1), Differences::default());
        for (state, said) in
            [(None, "is gone"), (Some('D'), "disabled"), (Some('O'), "session_replication_role"), (Some('R'), "session_replication_role")]
        {
            let found = found(&installed(vec![table(1, true, state)]), GuardMode::Enforce, 1);
            assert!(found.altered[0].contains(said) && found.is_incomplete, "{found:?}");
        }
        let mut changed = good.clone();
        changed.tables[0].trigger.as_mut().unwrap().kind &= !32;
        assert!(found(&changed, GuardMode::Enforce, 1).altered[0].contains("was altered"));
        let swapped = found(&installed(vec![table(2, true, None)]), GuardMode::Enforce, 1);
        assert!(swapped.altered[0].contains("another table"), "{swapped:?}");
        let leaf = found(&installed(vec![table(1, true, Some('A')), table(5, false, None)]), GuardMode::Enforce, 1);
        assert_eq!((leaf.altered.len(), leaf.unguarded.len(), leaf.is_incomplete), (0, 1, true));
        // Another declaration, mode or version is an upgrade and no alteration.
        for next in [found(&good, GuardMode::Observe, 1), found(&good, GuardMode::Enforce, 2)] {
            assert_eq!((next.altered.len(), next.is_incomplete), (0, true));
        }
        let more = found(&installed(vec![table(1, true, Some('A')), table(2, true, None)]), GuardMode::Enforce, 2);
        assert_eq!((more.altered.len(), more.is_incomplete), (0, true), "a table was declared");
        let mut edited = good.clone();
        edited.bodies.as_mut().unwrap()[0].push(' ');
        assert_eq!(found(&edited, GuardMode::Enforce, 1).altered.len(), 1);
        let nothing = Installed { record: None, bodies: None, tables: vec![table(1, true, None)], canary: false };
        assert_eq!((found(&nothing, GuardMode::Enforce, 1).altered.len(), found(&nothing, GuardMode::Enforce, 1).is_incomplete), (0, true));
    }
}
