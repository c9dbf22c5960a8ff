//! Prints what was judged, in one or several forms. One module for each form; all of them print the same assessment, and none judges.

mod json;
mod junit;
mod sarif;
mod table;

use std::{fs, io::Write, path::PathBuf, str::FromStr};

use crate::{
    audit::{
        assess::{
            Excuse, Located,
            judge::{Assessment, Ways},
        },
        rules::Severity,
    },
    cli::Failure,
};

/// A form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Table,
    Json,
    Sarif,
    JUnit,
}

/// A form, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Output {
    format: Format,
    file: Option<PathBuf>,
}

impl FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (format, file) = text.split_once('=').map_or((text, None), |(format, file)| (format, Some(PathBuf::from(file))));
        let format = match format {
            "table" => Format::Table,
            "json" => Format::Json,
            "sarif" => Format::Sarif,
            "junit" => Format::JUnit,
            other => return Err(format!("{other:?} is not one of table, json, sarif, junit")),
        };
        if file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
            return Err("the file's name is empty".into());
        }
        Ok(Self { format, file })
    }
}

/// Refuses what would mix two forms in one place.
pub(super) fn check(outputs: &[Output]) -> Result<(), Failure> {
    for (index, output) in outputs.iter().enumerate() {
        if outputs[..index].iter().any(|earlier| earlier.file == output.file) {
            let place = output.file.as_ref().map_or_else(|| "standard output".to_owned(), |file| file.display().to_string());
            return Err(Failure::Other(format!("--output: two forms go to {place}: give all but one a file (-o sarif=FILE)")));
        }
    }
    Ok(())
}

/// Prints in every wanted form, as a table when none is wanted.
pub(super) fn all(outputs: &[Output], result: &Assessment, ways: &Ways) -> Result<(), Failure> {
    let usual = [Output { format: Format::Table, file: None }];
    for output in if outputs.is_empty() { &usual } else { outputs } {
        let mut text = match output.format {
            Format::Table => table::render(result, &table::Look::new(output.file.is_none())),
            Format::Json => json::render(result, ways)?,
            Format::Sarif => sarif::render(result)?,
            Format::JUnit => junit::render(result)?,
        };
        if !text.ends_with('\n') {
            text.push('\n');
        }
        match &output.file {
            None => anstream::stdout().write_all(text.as_bytes())?,
            Some(file) => fs::write(file, text).map_err(|error| Failure::Other(format!("{}: {error}", file.display())))?,
        }
    }
    Ok(())
}

/// The findings that count.
fn counted(result: &Assessment) -> impl Iterator<Item = &Located> {
    result.findings.iter().filter(|found| found.excused.is_none())
}

/// How many findings there are, by what becomes of them.
#[derive(Debug, Default)]
struct Counts {
    errors: usize,
    warnings: usize,
    infos: usize,
    suppressed: usize,
    known: usize,
}

impl Counts {
    fn of(result: &Assessment) -> Self {
        let mut counts = Self::default();
        for found in &result.findings {
            match (&found.excused, found.finding.severity) {
                (Some(Excuse::Suppressed { .. }), _) => counts.suppressed += 1,
                (Some(Excuse::Known), _) => counts.known += 1,
                (None, Severity::Error) => counts.errors += 1,
                (None, Severity::Warning) => counts.warnings += 1,
                (None, Severity::Info) => counts.infos += 1,
            }
        }
        counts
    }
}

/// `1 lock`, `2 locks`.
pub(super) fn plural(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
