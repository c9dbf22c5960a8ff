//! Prints what was judged, in one or several forms. One module for each form; all of them print the same assessment, and none judges.

mod json;
mod junit;
mod sarif;
mod table;

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::PathBuf,
    str::FromStr,
};

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
        let named = |error: io::Error| match &output.file {
            Some(file) => Failure::Other(format!("--output: {}: {error}", file.display())),
            None => error.into(),
        };
        let place: Box<dyn Write> = match &output.file {
            Some(file) => Box::new(File::create(file).map_err(named)?),
            None => Box::new(anstream::stdout()),
        };
        let mut out = BufWriter::new(place);
        let written = match output.format {
            Format::Table => table::write(&mut out, result, &table::Look::new(output.file.is_none())),
            Format::Json => writeln!(out, "{}", json::render(result, ways)?),
            Format::Sarif => writeln!(out, "{}", sarif::render(result)?),
            Format::JUnit => writeln!(out, "{}", junit::render(result)?.trim_end()),
        };
        written.and_then(|()| out.flush()).map_err(named)?;
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

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::Path, process::Command};

    use super::*;
    use crate::{
        audit::baseline::Baseline,
        cli::{
            audit::gather,
            manifests::Exclude,
            schemas::{complaints, published},
        },
    };
    use k8s_openapi::jiff::SignedDuration;
    use serde_json::Value;

    /// An assessment with everything in it: locks, findings of all severities, files that cannot be read, suppressed and known ones.
    fn assessment() -> (Assessment, Ways) {
        let manifests = || {
            let paths = ["tests/cli/adopt.in", "tests/cli/manifests", "examples", "deny.toml"].map(str::to_owned);
            gather::manifests(&paths, &Exclude::new(&[]).unwrap(), "default").unwrap()
        };
        let now = "2026-12-01T00:00:00Z".parse().unwrap();
        let mut ways = Ways { now, soon: SignedDuration::from_hours(720), is_cluster: false, baseline: None, severities: BTreeMap::new() };
        let first = manifests().judge(&ways);
        ways.baseline = Some(Baseline::new(std::iter::empty(), first.findings.iter().take(3)));
        let result = manifests().judge(&ways);
        let counts = Counts::of(&result);
        let all =
            [counts.errors, counts.warnings, counts.infos, counts.suppressed, counts.known, result.locks.len(), result.unclassified.len()];
        assert!(all.iter().all(|count| *count > 0), "{all:?}");
        (result, ways)
    }

    /// The schema that OASIS published, from the source of a crate that is made of it.
    fn sarif_schema() -> Value {
        // What other platforms need is not here.
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let metadata = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--locked", "--offline", "--filter-platform", &platform])
            .output()
            .unwrap();
        assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
        let metadata: Value = serde_json::from_slice(&metadata.stdout).unwrap();
        let package = metadata["packages"].as_array().unwrap().iter().find(|package| package["name"] == "serde-sarif").unwrap();
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let mut schema: Value = serde_json::from_slice(&fs::read(manifest.with_file_name("src").join("schema.json")).unwrap()).unwrap();
        // The pattern of a language has a bracket too many; no language is written here.
        for of in ["run", "toolComponent"] {
            let language = schema.pointer_mut(&format!("/definitions/{of}/properties/language"));
            language.and_then(|language| language.as_object_mut()?.remove("pattern")).unwrap();
        }
        schema
    }

    #[test]
    fn sarif_is_what_the_published_schema_wants() {
        let schema = sarif_schema();
        assert_eq!(
            schema["id"].as_str().or_else(|| schema["$id"].as_str()).map(|id| id.contains("sarif")),
            Some(true),
            "the schema is the one"
        );
        let text = sarif::render(&assessment().0).unwrap();
        let mut log: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(complaints(&schema, &log), Vec::<String>::new());
        // The schema refuses what is wrong.
        log["runs"][0]["results"][0]["level"] = "terrible".into();
        assert_eq!(complaints(&schema, &log).len(), 1);
    }

    /// `GENERATE=1` renews it.
    #[test]
    fn the_published_schema_of_our_json_is_current_and_fits() {
        let schema = published("audit.schema.json", &json::schema());
        let (result, ways) = assessment();
        let mut report: Value = serde_json::from_str(&json::render(&result, &ways).unwrap()).unwrap();
        assert_eq!(complaints(&schema, &report), Vec::<String>::new());
        report["findings"][0]["severity"] = "terrible".into();
        assert_eq!(complaints(&schema, &report).len(), 1);
    }

    #[test]
    fn junit_names_each_lock_once_and_fails_what_counts() {
        let (result, _) = assessment();
        let text = junit::render(&result).unwrap();
        let report = quick_junit::Report::deserialize_from_str(&text).unwrap();
        let cases = &report.test_suites[0].test_cases;
        for lock in &result.locks {
            assert_eq!(cases.iter().filter(|case| case.name.as_str() == lock.id.to_string()).count(), 1, "{}", lock.id);
        }
        for case in cases {
            let of_it =
                counted(&result).filter(|found| found.object.to_string() == case.name.as_str() || *found.place.file == *case.name.as_str());
            let fails = of_it.into_iter().any(|found| found.finding.severity > Severity::Info);
            let failed = !matches!(case.status, quick_junit::TestCaseStatus::Success { .. });
            assert_eq!(failed, fails, "{}", case.name.as_str());
        }
    }
}
