//! Texts and orders of services, decided from facts.

use super::facts::{Facts, ServiceKind};
use super::install::{orders, planned};
use super::plan::{Found, MARK, PlannedFile, decide};
use super::{launchd, systemd};

fn facts(kind: ServiceKind) -> Facts {
    Facts {
        kind,
        programs: None,
        files_dir: "/home/a/units".into(),
        grpc: "127.0.0.1:50061".parse().expect("an address"),
        http: Some("127.0.0.1:8061".parse().expect("an address")),
        variables: vec![],
    }
}

fn text<'a>(files: &'a [PlannedFile], name: &str) -> &'a str {
    let file = files.iter().find(|file| file.path.ends_with(name));
    &file.unwrap_or_else(|| panic!("no {name}")).text
}

/// Lines of `new` that are not in `old`, and lines of `old` that are not in `new`.
fn difference<'a>(old: &'a str, new: &'a str) -> (Vec<&'a str>, Vec<&'a str>) {
    let without = |a: &'a str, b: &str| {
        a.lines().filter(|line| !b.lines().any(|other| other == *line)).collect()
    };
    (without(new, old), without(old, new))
}

#[test]
fn user_units_for_the_default_places_are_the_files_of_deploy_and_a_mark() {
    let files = planned(&facts(ServiceKind::SystemdUser));
    assert_eq!(files.len(), 4);
    for name in systemd::UNITS {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/systemd");
        let deployed = std::fs::read_to_string(format!("{dir}/{name}")).expect("there");
        let (mark, rest) = text(&files, name).split_once('\n').expect("lines");
        assert!(mark.starts_with("# ") && mark.contains(MARK), "{mark}");
        assert_eq!(rest, deployed, "{name}");
    }
}

#[test]
fn programs_addresses_and_variables_replace_those_of_deploy() {
    let plain = planned(&facts(ServiceKind::SystemdUser));
    let other = Facts {
        programs: Some("/opt/a b/50%".into()),
        grpc: "[::1]:7001".parse().expect("an address"),
        http: Some("0.0.0.0:7002".parse().expect("an address")),
        variables: vec![("PACELINE_CONFIG".into(), "/etc/50%.toml".into())],
        ..facts(ServiceKind::SystemdUser)
    };
    let files = planned(&other);
    let check = |name: &str, added: &[&str]| {
        let (new, old) = difference(text(&plain, name), text(&files, name));
        assert_eq!(new, added, "{name}");
        assert!(old.len() <= 1, "{old:?}");
    };
    let variable = "Environment=\"PACELINE_CONFIG=/etc/50%%.toml\"";
    check(systemd::SUPERVISOR, &[variable, "ExecStart=\"/opt/a b/50%%/paceline-supervisor\""]);
    check(systemd::GATEWAY, &[variable, "ExecStart=\"/opt/a b/50%%/paceline-gateway\""]);
    check(systemd::GRPC, &["ListenStream=[::1]:7001"]);
    check(systemd::HTTP, &["ListenStream=0.0.0.0:7002"]);
    assert_eq!(systemd::variables(text(&files, systemd::SUPERVISOR)), other.variables);
}

#[test]
fn without_http_there_is_no_socket_of_it_and_no_order_about_it() {
    let facts = Facts { http: None, ..facts(ServiceKind::SystemdUser) };
    let files = planned(&facts);
    assert!(!files.iter().any(|file| file.path.ends_with(systemd::HTTP)));
    let also = text(&files, systemd::GATEWAY).lines().find(|line| line.starts_with("Also="));
    assert_eq!(also, Some("Also=paceline-gateway.socket"));
    let changes = decide(files, &[], false).expect("nothing is there");
    for order in orders(&facts, &changes, true) {
        assert!(!order.to_string().contains("http"), "{order}");
    }
}

#[test]
fn units_of_the_machine_have_an_account_and_places_of_their_own() {
    let facts = Facts { programs: Some("/usr/bin".into()), ..facts(ServiceKind::SystemdSystem) };
    let files = planned(&facts);
    for name in [systemd::SUPERVISOR, systemd::GATEWAY] {
        let text = text(&files, name);
        for line in
            ["User=paceline", "Environment=XDG_CONFIG_HOME=/etc", "WantedBy=multi-user.target"]
        {
            assert!(text.lines().any(|found| found == line), "{name}: {line}");
        }
        for user in ["default.target", "%h", "A user unit"] {
            assert!(!text.contains(user), "{name}: {user}");
        }
        let variables = systemd::variables(text);
        assert!(variables.contains(&("XDG_RUNTIME_DIR".into(), "/run".into())), "{variables:?}");
    }
    assert!(text(&files, "paceline.conf").contains("\nu paceline "));
    let changes = decide(files, &[], false).expect("nothing is there");
    let shown: Vec<_> = orders(&facts, &changes, true).iter().map(ToString::to_string).collect();
    let units = systemd::UNITS.join(" ");
    let expected = [
        "systemd-sysusers /etc/sysusers.d/paceline.conf".to_owned(),
        "systemctl daemon-reload".to_owned(),
        format!("systemctl enable {units}"),
        format!("systemctl start {units}"),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn sockets_with_another_address_are_bound_anew() {
    let old = planned(&facts(ServiceKind::SystemdUser));
    let known: Vec<_> = old.into_iter().map(|file| (file.path, Found::Ours(file.text))).collect();
    let shown = |facts: &Facts| {
        let changes = decide(planned(facts), &known, false).expect("ours");
        let orders = orders(facts, &changes, true);
        orders.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let same = facts(ServiceKind::SystemdUser);
    assert!(!shown(&same).contains("stop"), "{}", shown(&same));
    let moved = Facts { grpc: "127.0.0.1:1".parse().expect("an address"), ..same.clone() };
    let stop = "systemctl --user stop paceline-gateway.service paceline-gateway.socket";
    assert!(shown(&moved).contains(stop), "{}", shown(&moved));
    assert!(shown(&Facts { http: None, ..same }).contains(stop));
}

#[test]
fn jobs_have_the_programs_the_addresses_and_the_variables() {
    let facts = Facts {
        programs: Some("/opt/paceline/bin".into()),
        grpc: "[::1]:7001".parse().expect("an address"),
        http: None,
        variables: vec![("PACELINE_CONFIG".into(), "/a b.toml".into())],
        ..facts(ServiceKind::LaunchdAgent)
    };
    let files = planned(&facts);
    for label in launchd::LABELS {
        let text = text(&files, &launchd::file_name(label));
        let name = label.rsplit('.').next().expect("a name");
        assert!(text.contains(&format!("exec \"/opt/paceline/bin/paceline-{name}\"")), "{text}");
        assert!(!text.contains(".local/bin") && text.contains(MARK), "{text}");
        assert_eq!(launchd::variables(text), facts.variables);
    }
    let gateway = text(&files, "dev.paceline.gateway.plist");
    for line in ["<string>::1</string>", "<string>7001</string>", "<string>IPv6</string>"] {
        assert!(gateway.contains(line), "{line}");
    }
    assert!(!gateway.contains("Http") && !gateway.contains("8061"), "{gateway}");
}

#[test]
fn the_answers_of_the_managers_become_lines() {
    let answer = "Id=a.service\nLoadState=loaded\nUnitFileState=enabled\nActiveState=active\nSubState=running\nMainPID=7\nNRestarts=0\nResult=success\nStatusText=target ready\n\n\
                  Id=b.service\nLoadState=loaded\nActiveState=failed\nSubState=failed\nMainPID=0\nNRestarts=3\nResult=exit-code\nStatusText=\n\n\
                  Id=c.socket\nLoadState=not-found\nActiveState=inactive\nSubState=dead\n";
    let lines: Vec<_> = systemd::report(answer).into_iter().map(|unit| unit.line).collect();
    let expected = [
        "a.service: active (running), enabled, pid 7; target ready",
        "b.service: failed (failed), restarts 3, result exit-code",
        "c.socket: not installed",
    ];
    assert_eq!(lines, expected);
    let answer = "gui/501/x = {\n\tstate = running\n\truns = 2\n\tpid = 9\n\tlast exit code = 75\n\tsockets = {\n\t\tstate = other\n\t}\n}\n";
    assert_eq!(launchd::report("x", answer), "x: running, pid 9, runs 2, last exit code 75");
}
