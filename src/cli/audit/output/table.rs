//! For people: the verdicts as a table, then the findings as sentences, then one line that counts.

use std::io::{self, IsTerminal, Write};

use anstyle::{AnsiColor, Style};

use super::{Counts, counted, plural};
use crate::{
    api::{Verdict, conditions::printable},
    audit::{
        assess::{Located, judge::Assessment},
        rules::Severity,
    },
    cli::table,
};

/// How it looks. Colours that are not wanted are taken out where it is printed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Look {
    colour: bool,
    /// The width in columns that sentences are wrapped at; not at all when nobody looks.
    width: Option<usize>,
}

impl Look {
    /// As it fits standard output, or a file.
    pub(super) fn new(is_stdout: bool) -> Self {
        let is_terminal = is_stdout && std::io::stdout().is_terminal();
        let width = terminal_size::terminal_size().filter(|_| is_terminal).map(|(width, _)| usize::from(width.0));
        Self { colour: is_terminal, width }
    }

    fn paint(self, style: Style, text: &str) -> String {
        if self.colour { format!("{style}{text}{style:#}") } else { text.to_owned() }
    }
}

const fn style(severity: Severity) -> Style {
    let colour = match severity {
        Severity::Error => AnsiColor::Red,
        Severity::Warning => AnsiColor::Yellow,
        Severity::Info => AnsiColor::Cyan,
    };
    colour.on_default().bold()
}

/// Sentence by sentence: of many thousands no copy is made.
pub(super) fn write(out: &mut impl Write, result: &Assessment, look: &Look) -> io::Result<()> {
    if result.locks.is_empty() {
        writeln!(out, "No FencedLock was found.")?;
    } else {
        writeln!(out, "{}", verdicts(result, look.width))?;
    }
    for found in counted(result) {
        finding(out, found, *look)?;
    }
    writeln!(out, "\n{}", summary(result))
}

fn verdicts(result: &Assessment, width: Option<usize>) -> String {
    let row = |lock: &crate::audit::assess::judge::JudgedLock| {
        let (good, all) = lock.judged.summary;
        vec![
            lock.id.namespace.to_string(),
            lock.id.name.to_string(),
            lock.class.map_or_else(|| "?".to_owned(), |class| format!("{class:?}")),
            format!("{:?}", lock.judged.verdict),
            lock.judged.reason.to_owned(),
            format!("{good}/{all}"),
        ]
    };
    // What is good comes last: the eye begins at the top.
    let mut locks: Vec<_> = result.locks.iter().collect();
    locks.sort_by_key(|lock| matches!(lock.judged.verdict, Verdict::NotRequired | Verdict::RiskAccepted | Verdict::Enforced));
    let rows: Vec<_> = locks.into_iter().map(row).collect();
    table::render_within(&["NAMESPACE", "NAME", "CLASS", "VERDICT", "REASON", "BOUNDARIES"], &rows, width)
}

fn finding(out: &mut impl Write, found: &Located, look: Look) -> io::Result<()> {
    let severity = found.finding.severity;
    let head = look.paint(style(severity), &format!("{severity}[{}]", found.finding.rule.id));
    let object = if found.object.kind.is_empty() { String::new() } else { format!(": {}", printable(&found.object.to_string())) };
    let place = if found.place.line == 0 { String::new() } else { format!("  at {}:{}\n", printable(&found.place.file), found.place.line) };
    writeln!(out, "\n{head}{object}\n{place}{}", wrap(&printable(&found.finding.message), look.width))
}

/// Wraps at blanks and indents.
fn wrap(message: &str, width: Option<usize>) -> String {
    let Some(width) = width.filter(|width| *width >= 20) else { return format!("  {message}") };
    let (mut text, mut column) = (String::from("  "), 2);
    for word in message.split(' ') {
        let length = word.chars().count();
        if column > 2 && column + 1 + length > width {
            text.push_str("\n  ");
            column = 2;
        } else if column > 2 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text
}

fn summary(result: &Assessment) -> String {
    let counts = Counts::of(result);
    let mut parts = vec![plural(result.locks.len(), "lock"), plural(counts.errors, "error"), plural(counts.warnings, "warning")];
    if counts.infos > 0 {
        parts.push(format!("{} for information", counts.infos));
    }
    if !result.unclassified.is_empty() {
        parts.push(format!("{} that nobody declared", plural(result.unclassified.len(), "lock")));
    }
    if counts.suppressed > 0 {
        parts.push(format!("{} suppressed", counts.suppressed));
    }
    if counts.known > 0 {
        parts.push(format!("{} known from the baseline", counts.known));
    }
    if result.gone > 0 {
        parts.push(format!("{} of the baseline {} gone: write it again", result.gone, if result.gone == 1 { "is" } else { "are" }));
    }
    if result.off > 0 {
        parts.push(format!("{} of rules that are off", result.off));
    }
    let mut text = parts.join(", ");
    if counts.errors + counts.warnings + counts.infos > 0 {
        text.push_str("\nWhat a rule means: fencedlock audit --explain RULE");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_fit_the_terminal_and_are_left_alone_elsewhere() {
        let sentence = "one two three four five six seven eight nine ten eleven twelve";
        assert_eq!(wrap(sentence, None), format!("  {sentence}"));
        let wrapped = wrap(sentence, Some(40));
        assert!(wrapped.lines().count() == 2 && wrapped.lines().all(|line| line.starts_with("  ") && line.len() <= 40), "{wrapped}");
        assert_eq!(wrapped.split_whitespace().collect::<Vec<_>>().join(" "), sentence);
    }
}
