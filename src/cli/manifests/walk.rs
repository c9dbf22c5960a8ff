//! Which files there are at the given paths.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use globset::{Glob, GlobSet, GlobSetBuilder};
use serde_json::Value;

use super::{Chunk, Text, pool::Sender, split::split};
use crate::cli::Failure;

/// Files and folders that are left out.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct Exclude(GlobSet);

impl Exclude {
    /// Reads patterns as `.gitignore` spells paths: `**/testdata/**`.
    pub(in crate::cli) fn new(patterns: &[String]) -> Result<Self, Failure> {
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            set.add(Glob::new(pattern).map_err(|error| Failure::Other(format!("exclude: {error}")))?);
        }
        Ok(Self(set.build().map_err(|error| Failure::Other(format!("exclude: {error}")))?))
    }

    fn has(&self, path: &Path) -> bool {
        self.0.is_match(path.strip_prefix("./").unwrap_or(path))
    }
}

pub(super) fn all(paths: &[String], exclude: &Exclude, send: &mut Sender) -> Result<(), Failure> {
    for path in paths {
        if path == "-" {
            split(io::stdin().lock(), &"-".into(), true, send)?;
            continue;
        }
        let path = Path::new(path);
        let is_folder = fs::metadata(path).map_err(|error| Failure::Other(format!("{}: {error}", path.display())))?.is_dir();
        if is_folder {
            let mut found = 0;
            folder(path, exclude, &mut BTreeSet::new(), &mut found, send)?;
            if found == 0 {
                return Err(Failure::Other(format!("{}: there is no .yaml, .yml or .json file in it", path.display())));
            }
        } else {
            file(path, true, send)?;
        }
    }
    Ok(())
}

fn name(path: &Path) -> Arc<str> {
    let text = path.display().to_string();
    text.strip_prefix("./").unwrap_or(&text).into()
}

fn file(path: &Path, is_named: bool, send: &mut Sender) -> Result<(), Failure> {
    let name = name(path);
    // Opened only for a look: a pipe that nobody writes to would be waited for.
    let is_file = fs::metadata(path).map(|meta| meta.is_file() || is_named);
    let opened = match is_file {
        Ok(true) => File::open(path),
        Ok(false) => return Ok(()),
        Err(error) => Err(error),
    };
    match opened {
        Ok(opened) => split(BufReader::with_capacity(64 * 1024, opened), &name, is_named, send),
        Err(error) if is_named => Err(Failure::Other(format!("{name}: {error}"))),
        Err(error) => {
            send.send(Chunk { file: name, line: 1, text: Text::Unreadable(error.to_string()), is_named });
            Ok(())
        }
    }
}

/// Everything below a folder, in the order of names. Hidden folders are left out, and links to folders, which can lead round in circles.
fn folder(path: &Path, exclude: &Exclude, patches: &mut BTreeSet<PathBuf>, found: &mut usize, send: &mut Sender) -> Result<(), Failure> {
    let failed = |error: io::Error| Failure::Other(format!("{}: {error}", path.display()));
    let mut entries: Vec<_> = fs::read_dir(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    let has = |name: &str| entries.iter().any(|entry| entry.file_name() == name);
    let is_chart = has("Chart.yaml");
    if is_chart && has("templates") && !exclude.has(&path.join("Chart.yaml")) {
        *found += 1;
        send.send(Chunk { file: name(&path.join("Chart.yaml")), line: 1, text: Text::Chart, is_named: false });
    }
    for kustomization in ["kustomization.yaml", "kustomization.yml", "Kustomization"].into_iter().filter(|name| has(name)) {
        patches.extend(patches_of(path, &path.join(kustomization)));
    }
    for entry in entries {
        let child = entry.path();
        let file_name = entry.file_name();
        let file_name = file_name.to_string_lossy();
        if exclude.has(&child) || patches.contains(&child) {
            continue;
        }
        let is_manifest = child.extension().is_some_and(|e| ["yaml", "yml", "json"].iter().any(|known| e.eq_ignore_ascii_case(known)));
        match entry.file_type().map_err(failed)? {
            // A chart's templates are programs, and its charts have Chart.yaml files of their own.
            kind if kind.is_dir() && !(file_name.starts_with('.') || is_chart && file_name == "templates") => {
                folder(&child, exclude, patches, found, send)?;
            }
            kind if !kind.is_dir() && is_manifest => {
                *found += 1;
                file(&child, false, send)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// The files that a kustomization lays over others: parts of objects, and no manifests.
fn patches_of(folder: &Path, file: &Path) -> Vec<PathBuf> {
    let mut text = String::new();
    // What cannot be read is told when its turn comes.
    let read = File::open(file).and_then(|file| file.take(1 << 20).read_to_string(&mut text));
    let Some(value) = read.ok().and_then(|_| serde_saphyr::from_str::<Value>(&text).ok()) else { return Vec::new() };
    let list = |field: &str| value.get(field).and_then(Value::as_array).into_iter().flatten();
    let plain = list("patchesStrategicMerge").filter_map(Value::as_str);
    let by_path = list("patches").chain(list("patchesJson6902")).filter_map(|patch| patch.get("path")?.as_str());
    plain.chain(by_path).map(|path| folder.join(path.strip_prefix("./").unwrap_or(path))).collect()
}
