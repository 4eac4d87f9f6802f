//! The files for several machines. `tests/routers` starts the router with the unit's own words.

use std::net::SocketAddr;
#[cfg(target_os = "linux")]
use std::process::Command;

use paceline_process::config::check_exposure;
use paceline_process::{Config, Loaded};
use serde_json::Value;

use super::files::{file, read_unit, says};

const UNIT: &str = "many/paceline-router.service";

#[test]
fn the_settings_of_a_machine_behind_a_router_are_accepted_and_the_list_has_its_address() {
    let text = std::fs::read_to_string(file("many/node.toml")).expect("it is there");
    let node = Loaded::from_text(&text, &[]).expect("accepted").config;
    let gateway = node.gateway;
    let address: SocketAddr = gateway.grpc.parse().expect("an address");
    check_exposure(&gateway, "gateway.grpc", address)
        .expect("the file says that it may be reached");
    assert!(!address.ip().is_loopback(), "the router is on another machine");
    // For people alone, so that nobody else in the shared network reaches it.
    assert_eq!(gateway.http, Config::default().gateway.http);

    let list = std::fs::read_to_string(file("many/workers.json")).expect("it is there");
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list["version"], 1);
    let workers = list["workers"].as_array().expect("a list");
    let urls: Vec<&str> = workers.iter().filter_map(|worker| worker["url"].as_str()).collect();
    assert_eq!(urls.len(), workers.len());
    assert!(urls.contains(&format!("grpc://{}", gateway.grpc).as_str()), "{urls:?}");
}

#[test]
fn the_unit_of_the_router_has_no_rights_that_it_does_not_need() {
    let unit = read_unit(&file(UNIT));
    says(
        &unit,
        "Service",
        &[
            ("DynamicUser", "yes"),
            ("Restart", "on-failure"),
            ("ProtectSystem", "strict"),
            ("PrivateDevices", "yes"),
            ("NoNewPrivileges", "yes"),
            ("UMask", "0077"),
        ],
    );
    // smg's own bound for running streams at a stop.
    let stop: u64 = unit["Service"]["TimeoutStopSec"][0].parse().expect("seconds");
    assert!(stop > 180, "{stop}");
}

#[cfg(target_os = "linux")]
#[test]
fn systemd_finds_nothing_to_complain_about_in_the_unit_of_the_router() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let text = std::fs::read_to_string(file(UNIT)).expect("it is there");
    // It checks that the program exists.
    let program = paceline_tests::programs().join("paceline").display().to_string();
    let copy = dir.path().join("paceline-router.service");
    std::fs::write(&copy, text.replace("/opt/paceline-router/bin/smg", &program)).expect("written");
    let output = Command::new("systemd-analyze").arg("verify").arg(&copy).output();
    let output = output.expect("systemd-analyze, which comes with systemd");
    let words = String::from_utf8_lossy(&output.stderr);
    let ours: Vec<&str> = words.lines().filter(|line| line.contains("paceline")).collect();
    assert!(output.status.success() && ours.is_empty(), "{words}");
}
