//! `.fencedlock.yaml`: what a repository always wants of its audit. A flag wins over it.

use std::{collections::BTreeMap, fs, io, path::Path};

use k8s_openapi::jiff::SignedDuration;
use serde::Deserialize;

use super::FailOn;
use crate::{
    api::ShortDuration,
    audit::{
        boundary::SOON,
        rules::{Severity, catalogue},
    },
    cli::Failure,
};

/// The file that is read when no other one is named.
pub(super) const FILE: &str = ".fencedlock.yaml";

/// What is easily written instead.
const MISNAMED: &str = ".fencedlock.yml";

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Config {
    pub(super) fail_on: Option<FailOn>,
    #[serde(default)]
    pub(super) exclude: Vec<String>,
    #[serde(default)]
    severities: BTreeMap<String, Weight>,
    pub(super) baseline: Option<String>,
    pub(super) namespace: Option<String>,
    /// How long before its end an acceptance is reported; 30 days when absent.
    expires_soon: Option<ShortDuration>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Weight {
    Info,
    Warning,
    Error,
    Off,
}

impl Config {
    /// Reads the named file, or the usual one when it is there.
    pub(super) fn read(named: Option<&Path>) -> Result<Self, Failure> {
        let path = named.unwrap_or_else(|| Path::new(FILE));
        let failed = |why: &dyn std::fmt::Display| Failure::Other(format!("{}: {why}", path.display()));
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if named.is_none() && error.kind() == io::ErrorKind::NotFound => {
                return if Path::new(MISNAMED).exists() {
                    Err(Failure::Other(format!("{MISNAMED}: is not read: name it {FILE}, or pass it with --config")))
                } else {
                    Ok(Self::default())
                };
            }
            Err(error) => return Err(failed(&error)),
        };
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self::default());
        }
        let config: Self = serde_saphyr::from_str(&text).map_err(|error| failed(&error.without_snippet()))?;
        match config.severities.keys().find(|id| catalogue::by_id(id).is_none()) {
            Some(id) => Err(failed(&format!("severities: there is no rule {id:?}: fencedlock audit --explain lists them"))),
            None => Ok(config),
        }
    }

    pub(super) fn severities(&self) -> BTreeMap<String, Option<Severity>> {
        let severity = |weight: &Weight| match weight {
            Weight::Info => Some(Severity::Info),
            Weight::Warning => Some(Severity::Warning),
            Weight::Error => Some(Severity::Error),
            Weight::Off => None,
        };
        self.severities.iter().map(|(id, weight)| (id.clone(), severity(weight))).collect()
    }

    pub(super) fn soon(&self) -> SignedDuration {
        let soon = self.expires_soon.map(ShortDuration::get);
        soon.and_then(|soon| SignedDuration::try_from(soon).ok()).unwrap_or(SOON)
    }
}
