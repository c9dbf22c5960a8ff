//! What was measured, in the order of measuring, and where it is written down.

use std::{fs, path::Path};

use serde_json::{Value, json};

const COMMAND: &str = "make bench";

/// A bound that a figure should keep.
#[derive(Clone, Copy)]
pub enum Goal {
    AtMost(f64),
    AtLeast(f64),
    None,
}

#[derive(Default)]
pub struct Results(Vec<Value>);

impl Results {
    pub fn add(&mut self, name: &str, value: f64, unit: &str, goal: Goal) {
        let value = (value * 1000.0).round() / 1000.0;
        let (goal, met) = match goal {
            Goal::AtMost(bound) => (format!("<= {bound}"), Some(value <= bound)),
            Goal::AtLeast(bound) => (format!(">= {bound}"), Some(value >= bound)),
            Goal::None => ("none".to_owned(), None),
        };
        println!("{name:<28} {value:>12} {unit:<12} goal {goal}{}", if met == Some(false) { "  MISSED" } else { "" });
        self.0.push(json!({"name": name, "value": value, "unit": unit, "goal": goal, "met": met, "command": COMMAND}));
    }

    /// Writes bench/results/latest.json. Figures that other benches wrote stay.
    pub fn write(&self) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("bench/results/latest.json");
        let before: Value = fs::read_to_string(&path).map_or(Value::Null, |text| serde_json::from_str(&text).unwrap());
        let is_ours = |other: &&Value| self.0.iter().all(|own| own["name"] != other["name"]);
        let others = before["results"].as_array().into_iter().flatten().filter(is_ours).cloned();
        let results: Vec<Value> = self.0.iter().cloned().chain(others).collect();
        let text = serde_json::to_string_pretty(&json!({"machine": machine(), "results": results})).unwrap();
        fs::write(path, text + "\n").unwrap();
    }
}

fn machine() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap();
    let model = cpuinfo.lines().find(|l| l.starts_with("model name")).and_then(|l| l.split(": ").nth(1)).unwrap_or("unknown");
    let cores = cpuinfo.lines().filter(|l| l.starts_with("processor")).count();
    format!("{cores} cores of {model}, shared with etcd and kube-apiserver")
}

pub fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * q).round() as usize]
}
