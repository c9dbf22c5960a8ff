//! Tests on a real control plane: etcd and kube-apiserver, started once for this binary (`support::plane`). Each test has a
//! namespace of its own and runs the operator in it under the chart's ServiceAccount and Role, never as admin.
//!
//! Needs the binaries of `hack/build-tools.sh`; without them the tests fail and say so.

#![allow(missing_docs, unreachable_pub, clippy::pedantic, clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod around;
mod audit;
mod bad_input;
mod boundaries;
mod chart;
mod clients;
mod crash;
mod crd;
mod drill;
mod election;
mod epochs;
mod faults;
mod guard;
mod ledger;
mod objects;
#[allow(dead_code, reason = "shared with tests/postgres, which uses the rest")]
#[path = "../postgres/support/mod.rs"]
mod pg;
mod postgres;
mod recover;
mod renewals;
mod restore;
mod revoke;
mod rights;
mod serving;
mod support;
mod verdicts;
mod worker;
