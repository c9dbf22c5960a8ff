//! Which files there are at the given paths.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, BufReader, Read},
    path::{Path, PathBuf},
    sync::Arc,
};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use serde_json::Value;

use super::{Chunk, How, Text, pool::Sender, split::split};
use crate::cli::Failure;

/// Files and folders that are left out.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct Exclude(GlobSet);

impl Exclude {
    /// Reads patterns as `.gitignore` spells paths: `**/testdata/**`.
    pub(in crate::cli) fn new(patterns: &[String]) -> Result<Self, Failure> {
        let mut set = GlobSetBuilder::new();
        for pattern in patterns {
            // A slash at the end says that a folder is meant, and paths have none there.
            let glob = GlobBuilder::new(pattern.strip_suffix('/').unwrap_or(pattern)).literal_separator(true).build();
            set.add(glob.map_err(|error| Failure::Other(format!("exclude: {error}")))?);
        }
        Ok(Self(set.build().map_err(|error| Failure::Other(format!("exclude: {error}")))?))
    }

    fn has(&self, path: &Path) -> bool {
        self.0.is_match(path.strip_prefix("./").unwrap_or(path))
    }
}

pub(super) fn all(paths: &[String], exclude: &Exclude, send: &mut Sender) -> Result<(), Failure> {
    let mut walk = Walk { exclude, patches: BTreeSet::new(), folders: BTreeSet::new(), found: 0, send };
    for path in paths {
        let before = walk.send.sent();
        if path == "-" {
            split(io::stdin().lock(), &"-".into(), NAMED, walk.send)?;
            walk.send
                .must_have_grown(before, || "-: there is no document on standard input: did the command before the pipe fail?".into())?;
            continue;
        }
        let path = Path::new(path);
        let is_folder = fs::metadata(path).map_err(|error| failed(path, &error))?.is_dir();
        if is_folder {
            walk.found = 0;
            let is_new = walk.folder(path)?;
            if is_new && walk.found == 0 {
                return Err(Failure::Other(format!("{}: there is no .yaml, .yml or .json file in it", path.display())));
            }
        } else {
            file(path, NAMED, walk.send)?;
            walk.send.must_have_grown(before, || {
                format!("{}: there is no document in it: did the command that wrote it fail?", path.display())
            })?;
        }
    }
    Ok(())
}

const NAMED: How = How { is_named: true, is_patch: false };

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::Other(format!("{}: {error}", path.display()))
}

fn name(path: &Path) -> Arc<str> {
    let text = path.display().to_string();
    text.strip_prefix("./").unwrap_or(&text).into()
}

fn file(path: &Path, how: How, send: &mut Sender) -> Result<(), Failure> {
    let name = name(path);
    // Opened only for a look: a pipe that nobody writes to would be waited for.
    let is_file = fs::metadata(path).map(|meta| meta.is_file() || how.is_named);
    let opened = match is_file {
        Ok(true) => File::open(path),
        Ok(false) => return Ok(()),
        Err(error) => Err(error),
    };
    match opened {
        Ok(opened) => split(BufReader::with_capacity(64 * 1024, opened), &name, how, send),
        Err(error) if how.is_named => Err(failed(path, &error)),
        Err(error) => {
            send.send(Chunk { file: name, line: 1, text: Text::Unreadable(error.to_string()), how });
            Ok(())
        }
    }
}

/// The folders on the way.
struct Walk<'a> {
    exclude: &'a Exclude,
    /// The files that some kustomization above lays over others.
    patches: BTreeSet<PathBuf>,
    /// Where it has been: links can lead round in circles, and two paths to the same place.
    folders: BTreeSet<PathBuf>,
    /// How many manifests there were.
    found: usize,
    send: &'a mut Sender,
}

impl Walk<'_> {
    /// Everything below a folder, in the order of names, without hidden folders; `false` when it was read already.
    fn folder(&mut self, path: &Path) -> Result<bool, Failure> {
        let failed = |error: io::Error| failed(path, &error);
        if !self.folders.insert(path.canonicalize().map_err(failed)?) {
            return Ok(false);
        }
        let mut entries: Vec<_> = fs::read_dir(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        let has = |name: &str| entries.iter().any(|entry| entry.file_name() == name);
        let is_chart = has("Chart.yaml");
        if is_chart && has("templates") && !self.exclude.has(&path.join("Chart.yaml")) {
            self.found += 1;
            self.send.send(Chunk { file: name(&path.join("Chart.yaml")), line: 1, text: Text::Chart, how: How::default() });
        }
        for kustomization in ["kustomization.yaml", "kustomization.yml", "Kustomization"].into_iter().filter(|name| has(name)) {
            self.patches.extend(patches_of(path, &path.join(kustomization)));
        }
        for entry in entries {
            let child = entry.path();
            let file_name = entry.file_name();
            let file_name = file_name.to_string_lossy();
            if self.exclude.has(&child) {
                continue;
            }
            let is_manifest = file_name == "Kustomization"
                || child.extension().is_some_and(|e| ["yaml", "yml", "json"].iter().any(|known| e.eq_ignore_ascii_case(known)));
            let kind = entry.file_type().map_err(failed)?;
            // A link that leads nowhere is read as a file, which says so when it is named like a manifest.
            let is_folder = kind.is_dir() || kind.is_symlink() && child.is_dir();
            // A chart's templates are programs, and its charts have Chart.yaml files of their own.
            if is_folder && !(file_name.starts_with('.') || is_chart && file_name == "templates") {
                self.folder(&child)?;
            } else if !is_folder && is_manifest {
                self.found += 1;
                let is_patch = !self.patches.is_empty() && child.canonicalize().is_ok_and(|child| self.patches.contains(&child));
                file(&child, How { is_named: false, is_patch }, self.send)?;
            }
        }
        Ok(true)
    }
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
    plain.chain(by_path).filter_map(|path| folder.join(path).canonicalize().ok()).collect()
}
