//! Messages and client of CRI v1, generated from `proto/cri.proto`.
#![allow(
    missing_docs,
    unreachable_pub,
    dead_code,
    clippy::all,
    clippy::pedantic,
    reason = "generated code"
)]

tonic::include_proto!("runtime.v1");
