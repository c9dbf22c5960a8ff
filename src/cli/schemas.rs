//! For tests: the schemas of what the command line prints for programs, as they are published in `docs/reference`.

use std::{fs, path::Path};

use serde_json::Value;

/// The published schema of this name, which has to be the one that is generated. `GENERATE=1` renews it.
pub(super) fn published(name: &str, generated: &schemars::Schema) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/reference").join(name);
    let schema = serde_json::to_value(generated).unwrap();
    let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
    if std::env::var_os("GENERATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &text).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap_or_default(), text, "make generate renews docs/reference/{name}");
    schema
}

/// Complaints about a value by a schema.
pub(super) fn complaints(schema: &Value, value: &Value) -> Vec<String> {
    let validator = jsonschema::validator_for(schema).unwrap();
    validator.iter_errors(value).map(|error| format!("{}: {error}", error.instance_path())).collect()
}
