//! The model, its drafters, and the memory of this machine for them, as `paceline inspect` finds them.

use std::path::Path;

use paceline_client::print::{bytes, refusal};
use paceline_process::config::DrafterChoice;
use paceline_process::{Loaded, chain};
use paceline_proto::convert::service::ServiceStatus;
use paceline_system::platform;
use serde_json::Value;
use tokio::time::timeout;

use super::programs::LIMIT;
use super::{Check, State};
use crate::inspect::{described, verdict};

/// Checks the model of the running service, else the configured one.
pub(super) async fn check(loaded: &Loaded, status: Option<&ServiceStatus>) -> Vec<Check> {
    let served = status.and_then(|status| status.target.model.as_ref());
    let dir = match served {
        Some(model) => model.into(),
        None => match loaded.config.model_dir() {
            Ok(dir) => dir,
            Err(error) => {
                return vec![Check::problem("model", chain(&error), ""), memory(None, None)];
            }
        },
    };
    let object = match inspected(loaded, &dir, None).await {
        Ok(object) => object,
        Err(why) => {
            let fact = format!("{} cannot be served: {why}", dir.display());
            let remedy = "set target.model to another model, or pull it again";
            return vec![Check::problem("model", fact, remedy), memory(None, None)];
        }
    };
    let mut found = vec![model(&object, served.is_some())];
    match status {
        Some(status) => found.extend(status.refused_drafters.iter().map(|refused| {
            Check::warning("drafter", refusal(refused), "requests are served without it")
        })),
        None => found.extend(drafters(loaded, &dir).await),
    }
    let weights = object["model"]["memory_bytes"].as_u64();
    // A service that runs has its budget already, and less is free beside it.
    let budget = match status {
        Some(status) => Some(status.kv.budget_bytes),
        None => object["kv"]["budget_bytes"].as_u64(),
    };
    found.push(memory(weights, budget));
    found
}

/// The description of a model, and of a drafter beside it.
async fn inspected(loaded: &Loaded, dir: &Path, drafter: Option<&str>) -> Result<Value, String> {
    let dir = dir.to_str().ok_or("expected a path in UTF-8, found another")?;
    match timeout(LIMIT, described(dir, drafter, None, loaded)).await {
        Ok(object) => object.map_err(|failure| failure.message),
        Err(_) => Err(format!("it did not end within {} s", LIMIT.as_secs())),
    }
}

/// A model that is served holds its memory, so that it would not fit a second time.
fn model(object: &Value, is_served: bool) -> Check {
    let (model, machine) = (&object["model"], &object["machine"]);
    let path = model["path"].as_str().unwrap_or_default();
    let fits = if is_served { "is served".to_owned() } else { verdict(machine) };
    let fact = format!("{} at {path} {fits}", model["name"].as_str().unwrap_or("?"));
    match is_served || machine["fits"] == true {
        true => Check::ok("model", fact),
        false => {
            Check::problem("model", fact, "end other programs, or choose a smaller target.model")
        }
    }
}

/// A check of each configured drafter. One that cannot be used is no problem if another can.
async fn drafters(loaded: &Loaded, dir: &Path) -> Vec<Check> {
    let missing = loaded.config.missing_drafters();
    let mut found: Vec<Check> =
        missing.iter().map(|error| Check::problem("drafter", chain(error), "")).collect();
    for choice in loaded.config.drafter_choices() {
        found.extend(match &choice {
            DrafterChoice::None => None,
            DrafterChoice::Lookup => {
                Some(Check::ok("drafter", "prompt lookup, which goes with any model"))
            }
            DrafterChoice::Directory(path) if !path.is_dir() => None,
            choice => {
                let name = choice.name();
                Some(drafter(&name, inspected(loaded, dir, Some(&name)).await))
            }
        });
    }
    if found.iter().any(|check| check.state == State::Ok) {
        let all = found.iter_mut().filter(|check| check.state == State::Problem);
        all.for_each(|check| check.state = State::Warning);
    }
    if found.is_empty() {
        found.push(Check::ok("drafter", "none is configured; all requests have the plain lane"));
    }
    found
}

fn drafter(name: &str, inspected: Result<Value, String>) -> Check {
    let remedy = "set drafter.model to another drafter, or to \"auto\"";
    match inspected {
        Err(why) => Check::problem("drafter", format!("{name} cannot be checked: {why}"), remedy),
        Ok(object) if object["drafter"]["fits"] == true => {
            let kind = object["drafter"]["kind"].as_str().unwrap_or("?");
            let size = object["drafter"]["memory_bytes"].as_u64().map_or_else(String::new, bytes);
            Check::ok("drafter", format!("{name} ({kind}, {size}) goes with the model"))
        }
        Ok(object) => {
            let fact = format!("{name} {}", verdict(&object["drafter"]));
            Check::problem("drafter", fact, remedy)
        }
    }
}

/// The machine's memory, and what the model takes of it.
fn memory(weights: Option<u64>, budget: Option<u64>) -> Check {
    let size = |size: Option<u64>| size.map_or_else(|| "unknown".to_owned(), bytes);
    let (all, now) = (platform::machine_memory(), platform::available_memory());
    let mut fact = format!("{} in all, {} can be used now", size(all), size(now));
    if weights.is_some() {
        fact += &format!("; weights {}, KV budget {}", size(weights), size(budget));
    }
    match now {
        Some(_) => Check::ok("memory", fact),
        None => Check::warning("memory", fact, "set kv.budget_bytes"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_that_does_not_fit_is_a_problem_unless_it_is_served() {
        let object = json!({
            "model": {"name": "m", "path": "/m"},
            "machine": {"fits": false, "reason": "too large"},
        });
        let check = model(&object, false);
        assert_eq!(check.state, State::Problem);
        assert_eq!(check.fact, "m at /m does not fit: too large");
        assert_eq!(model(&object, true), Check::ok("model", "m at /m is served"));
        let fact = memory(Some(3 << 30), Some(1 << 30)).fact;
        assert!(fact.ends_with(" can be used now; weights 3.0 GiB, KV budget 1.0 GiB"), "{fact}");
    }

    #[test]
    fn a_drafter_that_does_not_go_with_the_model_is_named_with_its_reason() {
        let of = |fits: bool| {
            let reason = (!fits).then_some("other sizes");
            drafter(
                "/d",
                Ok(
                    json!({"drafter": {"fits": fits, "reason": reason, "kind": "dflash", "memory_bytes": 1 << 20}}),
                ),
            )
        };
        assert_eq!(of(true), Check::ok("drafter", "/d (dflash, 1.0 MiB) goes with the model"));
        assert_eq!(
            (of(false).state, of(false).fact),
            (State::Problem, "/d does not fit: other sizes".into())
        );
        assert_eq!(drafter("/d", Err("no".into())).fact, "/d cannot be checked: no");
    }

    #[tokio::test]
    async fn a_drafter_that_is_missing_is_a_warning_beside_one_that_can_be_used() {
        let of = async |value: &str| {
            let loaded = Loaded::from_text(&format!("drafter.model = {value}\n"), &[]);
            let found = drafters(&loaded.expect("accepted"), Path::new("/m")).await;
            found.iter().map(|check| check.state).collect::<Vec<_>>()
        };
        assert_eq!(of("\"\"").await, [State::Ok]);
        assert_eq!(of("\"/nowhere/d\"").await, [State::Problem]);
        assert_eq!(of("[\"/nowhere/d\", \"lookup\"]").await, [State::Warning, State::Ok]);
    }
}
