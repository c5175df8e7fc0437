//! The access patterns on a region of the library's, whose budget is `--memory`.
//!
//! It has the same options and output as `access`. `OVERSPILL_DELIVERY=threads`, `OVERSPILL_POLICY` and `OVERSPILL_ENGINE` set what
//! the common options do not. The last line of JSON has the pager's counters.

use overspill::{Delivery, Engine, Pager, Region};
use overspill_bench::options::Options;
use overspill_bench::patterns;
use serde_json::{Map, Value, json};
use std::process::ExitCode;

fn main() -> ExitCode {
    let options = Options::from_args();
    let mut region = match region(&options) {
        Ok(region) => region,
        Err(error) => {
            eprintln!("bench-region: {error}");
            return ExitCode::from(2);
        }
    };
    if let Err(wrong) = patterns::run(&options, region.as_atomics(), |line| println!("{line}")) {
        eprintln!("bench-region: {wrong}");
        return ExitCode::from(3);
    }
    let mut counters = Map::new();
    region.counters().for_each(|info, value| {
        counters.insert(info.name.into(), Value::from(value));
    });
    println!("{}", json!({ "counters": counters }));
    ExitCode::SUCCESS
}

fn region(options: &Options) -> Result<Region, overspill::Error> {
    let mut builder = Pager::builder().memory(options.memory as u64);
    if let Some(place) = &options.swap {
        builder = builder.swap(place);
    }
    if std::env::var("OVERSPILL_DELIVERY").is_ok_and(|d| d == "threads") {
        builder = builder.delivery(Delivery::Threads);
    }
    if let Ok(policy) = std::env::var("OVERSPILL_POLICY") {
        builder = builder.policy(policy);
    }
    if let Some(engine) = std::env::var("OVERSPILL_ENGINE").ok().and_then(|name| Engine::from_name(&name)) {
        builder = builder.engine(engine);
    }
    builder.build()?.region(options.size)
}
