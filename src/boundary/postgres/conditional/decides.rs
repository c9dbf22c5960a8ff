//! Whether what the reserved row shows holds for every other row: the comparison must depend on nothing but the fence, the holder and the
//! parameters, because the probes see one row only. Pure. Deliberately narrow: a form that is not recognised is never proven, and a condition that
//! stands beside a recognised one can only refuse more.

use sqlparser::ast::{BinaryOperator, DataType, ExactNumberInfo, Expr};

use super::statement::{Compares, Reading, bare, conjuncts, is_parameter};
use crate::api::WritesPerEpoch;

fn disjuncts(expression: &Expr) -> Vec<&Expr> {
    match expression {
        Expr::Nested(inner) => disjuncts(inner),
        Expr::BinaryOp { left, op: BinaryOperator::Or, right } => [disjuncts(left), disjuncts(right)].concat(),
        other => vec![other],
    }
}

/// Whether no cast on the way can make two epochs equal, or fail on a large one.
pub(super) fn is_wide(expression: &Expr) -> bool {
    match expression {
        Expr::Nested(inner) => is_wide(inner),
        Expr::Cast { expr, data_type, .. } => {
            matches!(data_type, DataType::BigInt(None) | DataType::Int8(None) | DataType::Numeric(ExactNumberInfo::None)) && is_wide(expr)
        }
        _ => true,
    }
}

/// A condition that decides by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// `fence < epoch`
    Less,
    /// `fence <= epoch`
    LessOrEqual,
    /// `fence < epoch OR holder = $n`: an equal epoch only by its holder, beside `fence <= epoch`.
    LessOrHeld,
    /// `fence < epoch OR fence = epoch AND holder = $n`
    LessOrOwn,
}

impl Reading<'_> {
    /// Why it would not hold, as the end of a sentence that names the field; `None` when it does.
    pub(super) fn undecided(
        &self,
        selection: Option<&Expr>,
        written: &[(String, &Expr)],
        own: &str,
        writes: WritesPerEpoch,
    ) -> Option<String> {
        let (fence, epoch) = (&self.declared.fence_column, self.declared.parameters.epoch);
        let stored = written.iter().find(|(column, _)| column == fence).map(|(_, value)| *value);
        if !stored.is_some_and(|value| Self::is_given(value, epoch, Some(fence))) {
            return Some(format!("does not store the epoch as it is: write SET {fence} = ${epoch}"));
        }
        let form = |conjunct| match self.comparison(conjunct, own) {
            Some(Compares::Less) => Some(Form::Less),
            Some(_) => Some(Form::LessOrEqual),
            None => self.disjunction(conjunct, own),
        };
        let forms: Vec<_> = selection.into_iter().flat_map(conjuncts).filter_map(form).collect();
        let has = |form| forms.contains(&form);
        if let Some((column, holder)) = self.declared.holder_column.as_ref().zip(self.declared.parameters.holder) {
            let stored = written.iter().find(|(name, _)| name == column).map(|(_, value)| *value);
            if !has(Form::Less) && !stored.is_some_and(|value| Self::is_given(value, holder, Some(column))) {
                return Some(format!("does not store the holder as it is: write SET {column} = ${holder}"));
            }
        }
        let names_holder = self.declared.parameters.holder.is_some();
        let is_enough = has(Form::Less)
            || writes == WritesPerEpoch::Many
                && (has(Form::LessOrOwn) || has(Form::LessOrEqual) && (!names_holder || has(Form::LessOrHeld)));
        let wanted = match (writes, names_holder) {
            (WritesPerEpoch::Many, false) => format!("{fence} <= ${epoch}"),
            (WritesPerEpoch::Many, true) => format!("({fence} < ${epoch} OR {fence} = ${epoch} AND holder = $n)"),
            _ => format!("{fence} < ${epoch}"),
        };
        (!is_enough).then(|| {
            format!(
                "has no condition of its own that reads AND {wanted}, so that what one row shows need not hold for the others: write that"
            )
        })
    }

    /// `fence < epoch` or `fence <= epoch`, from either side.
    pub(super) fn comparison(&self, expression: &Expr, own: &str) -> Option<Compares> {
        let Expr::BinaryOp { left, op, right } = bare(expression) else { return None };
        let fence = self.declared.fence_column.as_str();
        let is_fence = |side: &Expr| Self::is_own(side, Some(fence), own).is_some();
        let is_epoch = |side: &Expr| Self::is_given(side, self.declared.parameters.epoch, Some(fence));
        if !(is_wide(left) && is_wide(right)) {
            return None;
        }
        match op {
            BinaryOperator::Lt if is_fence(left) && is_epoch(right) => Some(Compares::Less),
            BinaryOperator::LtEq if is_fence(left) && is_epoch(right) => Some(Compares::LessOrEqual),
            BinaryOperator::Gt if is_epoch(left) && is_fence(right) => Some(Compares::Less),
            BinaryOperator::GtEq if is_epoch(left) && is_fence(right) => Some(Compares::LessOrEqual),
            _ => None,
        }
    }

    fn disjunction(&self, expression: &Expr, own: &str) -> Option<Form> {
        let (column, holder) = self.declared.holder_column.as_deref().zip(self.declared.parameters.holder)?;
        let (fence, epoch) = (self.declared.fence_column.as_str(), self.declared.parameters.epoch);
        let equals = |expression: &Expr, column: &str, parameter: u8| {
            let Expr::BinaryOp { left, op: BinaryOperator::Eq, right } = bare(expression) else { return false };
            [(left, right), (right, left)]
                .into_iter()
                .any(|(side, value)| Self::is_own(side, Some(column), own).is_some() && is_parameter(value, parameter))
        };
        let (mut less, mut equal, mut held) = (false, true, false);
        for part in disjuncts(expression) {
            if self.comparison(part, own) == Some(Compares::Less) {
                less = true;
                continue;
            }
            let conditions = conjuncts(part);
            let is_held = conditions.iter().any(|condition| equals(condition, column, holder));
            if !is_held {
                return None;
            }
            held = true;
            equal &= conditions.iter().any(|condition| equals(condition, fence, epoch));
        }
        (less && held).then_some(if equal { Form::LessOrOwn } else { Form::LessOrHeld })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{api::PostgresTable, boundary::postgres::conditional::statement::parse};

    /// Why a condition, or an assignment, leaves other rows undecided.
    fn undecided(set: &str, condition: &str, writes: WritesPerEpoch) -> Option<String> {
        let holder = condition.contains("$4") || set.contains("$4");
        let mut declared = json!({"parameters": {"key": 1, "payload": 2, "epoch": 3}, "fenceColumn": "last_fence",
            "statement": format!("update report r set payload = $2, {set} where id = $1 and {condition}")});
        if holder {
            declared["parameters"]["holder"] = 4.into();
            declared["holderColumn"] = "holder".into();
        }
        let table = PostgresTable { schema: "public".into(), name: "report".into() };
        parse(&serde_json::from_value(declared).unwrap(), &[table], writes).unwrap().undecided
    }

    const SET: &str = "last_fence = $3";
    const HELD: &str = "last_fence = $3, holder = $4";

    #[test]
    fn the_classic_forms_decide_every_row() {
        use WritesPerEpoch::{Many, Once};
        for (set, condition, writes) in [
            (SET, "last_fence < $3", Once),
            (SET, "$3::bigint > (r.last_fence)", Once),
            (SET, "last_fence < $3 and not is_archived", Once),
            (SET, "$3 < last_fence + 1000 and last_fence < $3", Once),
            (SET, "last_fence <= $3 and $3 > 0", Many),
            (SET, "last_fence < $3", Many),
            (HELD, "(last_fence < $3 or last_fence = $3 and holder = $4)", Many),
            (HELD, "(holder = $4 and $3 = last_fence or (last_fence < $3))", Many),
            (HELD, "last_fence <= $3 and (last_fence < $3 or holder = $4)", Many),
            ("last_fence = $3::bigint, holder = $4", "last_fence < $3 and $4 <> ''", Once),
        ] {
            assert_eq!(undecided(set, condition, writes), None, "{set} … {condition}");
        }
    }

    /// Each of these admits an obsolete owner on a row that is not like the reserved one.
    #[test]
    fn what_depends_on_anything_else_is_never_proven() {
        use WritesPerEpoch::{Many, Once};
        for (set, condition, writes) in [
            (SET, "(last_fence < $3 or is_forced)", Once),
            (SET, "(last_fence < $3 or (select x.is_forced from report x where x.id = $1))", Once),
            (SET, "(last_fence < $3 or exists (select 1 from report x where x.payload = 'force'))", Once),
            (SET, "$3 < last_fence + 1000 and (last_fence < $3 or is_forced)", Once),
            (SET, "last_fence <= $3 and (last_fence < $3 or is_draft)", Once),
            (SET, "(last_fence < $3 or $2 = 'force')", Once),
            (SET, "(last_fence < $3 or $1 like 'draft-%')", Once),
            (SET, "(last_fence < $3 or current_setting('app.force', true) = 'on')", Once),
            (SET, "(last_fence < $3 or current_user = 'batch')", Once),
            (SET, "(last_fence < $3 or to_jsonb(r.*)->>'is_forced' = 'true')", Once),
            (SET, "last_fence % 1000 < $3 % 1000", Once),
            (SET, "coalesce(last_fence, 0) < $3", Once),
            (SET, "last_fence::int < $3", Once),
            (SET, "last_fence <> $3", Once),
            (SET, "(last_fence < $3 or last_fence = $3)", Once),
            ("last_fence = case when $2 = 'draft' then last_fence else $3 end", "last_fence < $3", Once),
            ("last_fence = case when is_draft then last_fence else $3 end", "last_fence < $3", Once),
            ("last_fence = least($3, last_fence)", "last_fence < $3", Once),
            ("note = $3", "last_fence < $3", Once),
            (HELD, "last_fence <= $3 and $4 <> ''", Many),
            (HELD, "(last_fence < $3 or last_fence = $3 and holder = $4 or is_forced)", Many),
            (HELD, "(last_fence < $3 or holder = $4)", Many),
            (HELD, "(last_fence < $3 or holder = $4 or last_fence = $3 and holder = $4)", Many),
            (
                "last_fence = $3, holder = case when is_draft then holder else $4 end",
                "(last_fence < $3 or last_fence = $3 and holder = $4)",
                Many,
            ),
        ] {
            assert!(undecided(set, condition, writes).is_some(), "{set} … {condition}");
        }
    }
}
