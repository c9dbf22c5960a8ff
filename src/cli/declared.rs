//! One WriteBoundary out of a file, for the commands that print SQL for it.

use super::{
    Failure,
    manifests::{self, Exclude, Parsed, Problem, Text},
};
use crate::{
    api::{GROUP, WriteBoundary, WriteBoundarySpec},
    audit::schema,
};

/// Which one is wanted.
#[derive(Debug, clap::Args)]
pub(super) struct Wanted {
    /// The file with the WriteBoundary, or - for standard input
    #[arg(default_value = "-", value_name = "PATH")]
    path: String,
    /// Which WriteBoundary, when the file has several
    #[arg(long, value_name = "NAME")]
    boundary: Option<String>,
    /// The namespace of objects that name none
    #[arg(long, short, default_value = "default", value_name = "NAME")]
    namespace: String,
}

impl Wanted {
    /// Its namespace, name and declaration; `what` says in an error which ones are meant.
    pub(super) fn one(
        &self,
        is_meant: impl Fn(&WriteBoundarySpec) -> bool,
        what: &str,
    ) -> Result<(String, String, WriteBoundarySpec), Failure> {
        let mut read = Vec::new();
        manifests::read(
            std::slice::from_ref(&self.path),
            &Exclude::default(),
            |chunk| match chunk.text {
                Text::Document(text) => (chunk.file, manifests::parse(&text, chunk.line)),
                _ => (chunk.file, Vec::new()),
            },
            |parsed| read.push(parsed),
        )?;
        let mut found = Vec::new();
        for (file, parsed) in read.into_iter().flat_map(|(file, all)| all.into_iter().map(move |parsed| (file.clone(), parsed))) {
            let (line, object) = match parsed {
                Parsed::Object(line, object) => (line, object),
                Parsed::Problem(line, Problem::Unreadable(why) | Problem::Duplicate(why)) => {
                    return Err(Failure::Other(format!("{file}:{line}: is not YAML: {why}")));
                }
            };
            let text = |pointer: &str| object.pointer(pointer).and_then(serde_json::Value::as_str).map(str::to_owned);
            let name = text("/metadata/name").unwrap_or_default();
            let is_ours = text("/apiVersion").is_some_and(|version| version.split('/').next() == Some(GROUP));
            if !is_ours || text("/kind").as_deref() != Some("WriteBoundary") || self.boundary.as_ref().is_some_and(|wanted| *wanted != name)
            {
                continue;
            }
            let failed = |error: &dyn std::fmt::Display| Failure::Other(format!("{file}:{line}: WriteBoundary {name:?}: {error}"));
            if let Some(error) = schema::check("WriteBoundary", &object).first() {
                return Err(failed(error));
            }
            let namespace = text("/metadata/namespace").unwrap_or_else(|| self.namespace.clone());
            let boundary: WriteBoundary = serde_json::from_value(object).map_err(|error| failed(&error))?;
            if is_meant(&boundary.spec) {
                found.push((namespace, name, boundary.spec));
            }
        }
        match (found.pop(), found.as_slice()) {
            (Some(one), []) => Ok(one),
            (None, _) => Err(Failure::Other(format!("{}: there is no WriteBoundary {what}", self.path))),
            (Some(last), more) => {
                let names: Vec<_> = more.iter().chain([&last]).map(|(_, name, _)| name.as_str()).collect();
                Err(Failure::Other(format!("{}: there are several ({}): name one with --boundary", self.path, names.join(", "))))
            }
        }
    }
}
