use std::ffi::OsString;
use std::path::Path;

use super::environment::text_variables;
use super::known_keys::all_keys;
use super::*;
use paceline_checkpoint::{ModelPlaces, ModelRef, demo_dir};

#[test]
fn three_words_are_a_hubs_name_unless_there_is_a_directory() {
    let name = |text: &str| ModelRef::parse(text).hub_name().map(|name| name.to_string());
    // The tests run in the crate's folder, which has a folder src/config/load.
    assert_eq!(name("src/config/load"), None);
    assert_eq!(name("src/config/no-folder").as_deref(), Some("src/config/no-folder"));
}

/// Reads a file as a process whose parent found the default model on this machine.
fn build(text: &str, environment: &[(&str, &str)]) -> Result<Loaded, ConfigError> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("paceline.toml");
    std::fs::write(&path, text).expect("writable");
    let environment = [(DEFAULT_MODEL_VAR, "smollm2")].iter().chain(environment);
    let environment: Vec<_> =
        environment.map(|(name, value)| (name.to_string(), value.to_string())).collect();
    Loaded::build(Some(&path), &environment)
}

fn refusal(text: &str, environment: &[(&str, &str)]) -> String {
    build(text, environment).expect_err("refused").to_string()
}

#[test]
fn an_empty_file_means_the_defaults() {
    assert_eq!(build("", &[]).expect("accepted").config, Config::default());
}

#[test]
fn the_example_file_is_the_defaults() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../paceline.example.toml");
    let text = std::fs::read_to_string(example).expect("the example is in the repository");
    assert_eq!(build(&text, &[]).expect("accepted").config, Config::default());
    let written: toml::Table = text.parse().expect("TOML");
    for key in all_keys(&toml::Table::try_from(Config::default()).expect("plain")) {
        let mut at = Some(toml::Value::Table(written.clone()));
        for word in key.split('.') {
            at = at.and_then(|value| value.get(word).cloned());
        }
        assert!(at.is_some(), "paceline.example.toml lacks {key}");
    }
}

#[test]
fn the_environment_wins_and_is_typed() {
    let loaded = build(
        "[limits]\nqueue = 3\n[kv]\nbudget_bytes = 1000\n",
        &[
            ("PACELINE_LIMITS__QUEUE", "7"),
            ("PACELINE_KV__BUDGET_BYTES", "2000"),
            ("PACELINE_TARGET__MODEL", "123"),
            ("PACELINE_KV__PREFIX_CACHE", "false"),
        ],
    )
    .expect("accepted");
    assert_eq!(loaded.config.limits.queue, 7);
    assert_eq!(loaded.config.kv.budget_bytes, Auto::Is(2000));
    assert_eq!(loaded.config.target.model, "123");
    assert!(!loaded.config.kv.prefix_cache);
}

#[test]
fn a_burst_of_100_fits_the_queue_and_a_key_runs_half_of_what_runs() {
    let Config { target, limits, .. } = Config::default();
    assert_eq!((target.max_sequences, limits.queue, limits.streams_per_key), (32, 128, 16));
    let loaded =
        build("[target]\nmax_sequences = 128\n[limits]\nqueue = 0\n", &[]).expect("accepted");
    assert_eq!((loaded.config.target.max_sequences, loaded.config.limits.queue), (128, 0));
}

#[test]
fn an_empty_environment_value_is_a_value() {
    let loaded = build("[target]\nmodel = \"/somewhere\"\n", &[("PACELINE_TARGET__MODEL", "")])
        .expect("accepted");
    // An empty name means the default.
    assert_eq!(loaded.config.target.model, "smollm2");
    assert_eq!(loaded.source("target.model"), Source::Environment);
    assert!(
        refusal("", &[("PACELINE_LIMITS__QUEUE", "")]).contains("limits.queue: expected integer")
    );
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_name() {
    assert!(refusal("[limits]\nqeue = 1\n", &[]).contains("limits.qeue"));
    assert!(refusal("[limits]\nqeue = 1\n", &[]).contains("did you mean limits.queue?"));
    assert!(refusal("[limit]\nqueue = 1\n", &[]).contains("did you mean limits?"));
    assert!(
        refusal("", &[("PACELINE_ROUTING__MAXCONCURRENT", "1")])
            .contains("did you mean routing.max_concurrent?")
    );
    assert!(
        refusal("[gateway]\nmax_concurrent = 1\n", &[])
            .contains("did you mean routing.max_concurrent?")
    );
    assert!(refusal("", &[("PACELINE_LIMIT__QUEUE", "1")]).contains("did you mean limits.queue?"));
}

#[test]
fn a_former_name_is_refused_with_the_new_one() {
    for refused in
        [refusal("[kv]\ntap_window = 1\n", &[]), refusal("", &[("PACELINE_KV__TAP_WINDOW", "1")])]
    {
        assert!(refused.contains("kv.tap_window"), "{refused}");
        assert!(refused.contains("it is named kv.hidden_window now"), "{refused}");
    }
}

#[test]
fn a_level_of_the_log_is_a_level_or_has_one_for_each_module() {
    for level in ["info", "WARN", "off", "info,hyper=warn", "debug,h2=info"] {
        build(&format!("[log]\nlevel = {level:?}\n"), &[]).expect(level);
    }
    for level in ["", "verbose", "inof", "paceline_gateway", "info,hyper", "info,hyper=loud"] {
        let refused = refusal(&format!("[log]\nlevel = {level:?}\n"), &[]);
        assert!(refused.contains("log.level: expected off, error, warn"), "{refused}");
        assert!(refused.contains(&format!("found {level:?}")), "{refused}");
    }
}

#[test]
fn an_unknown_key_without_a_near_name_lists_all() {
    let refused = refusal("[gateway]\nlisten = 1\n", &[]);
    assert!(
        refused.contains("gateway.listen") && refused.contains("; expected one of gateway."),
        "{refused}"
    );
    assert!(refused.contains("gateway.grpc") && !refused.contains("limits."), "{refused}");
    let refused = refusal("[weather]\nrain = 1\n", &[]);
    assert!(
        refused.contains("expected one of classes, drafter, drain, gateway, ")
            && !refused.contains("gateway.grpc"),
        "{refused}"
    );
}

#[test]
fn wrong_values_name_the_key() {
    for (text, expected) in [
        ("[limits]\nqueue = \"many\"\n", "limits.queue"),
        ("[kv]\nbudget_bytes = -1\n", "kv.budget_bytes"),
        ("[kv]\nbudget_fraction = 1.5\n", "kv.budget_fraction"),
        ("[gateway]\ngrpc = \"localhost\"\n", "gateway.grpc"),
        ("[gateway]\ngrpc = \"\"\n", "gateway.grpc"),
        (
            "[gateway]\nhttp = \"localhost:80\"\n",
            "gateway.http: expected an address like 127.0.0.1:8061, or \"\" for none",
        ),
        ("[gateway]\ncors_origins = [\"a.example\"]\n", "gateway.cors_origins"),
        ("[gateway]\ncors_origins = [\"https://a.example/\"]\n", "gateway.cors_origins"),
        ("[gateway]\ncors_origins = 3\n", "gateway.cors_origins"),
        ("[gateway]\nhosts = [\"http://a.example\"]\n", "gateway.hosts: expected names"),
        ("[gateway]\nhosts = [\"a.example:8061\"]\n", "gateway.hosts"),
        ("[gateway]\nhosts = [\"*\"]\n", "gateway.hosts"),
        ("[gateway]\nhosts = [\"a..example\"]\n", "gateway.hosts"),
        ("[gateway]\nmodel_aliases = true\n", "gateway.model_aliases"),
        ("[gateway]\ntool_format = \"xml\"\n", "gateway.tool_format"),
        ("[supervisor]\nlease_s = 0\n", "supervisor.lease_s"),
        ("[limits]\nmessage_s = 0\n", "limits.message_s: expected at least 1"),
        ("[drain]\nnotice_s = 61\n", "drain.notice_s: expected at most 60 seconds, found 61"),
        ("[limits]\nbody_bytes = 67108863\n", "limits.body_bytes: expected at least 67108864"),
        ("[limits]\nmax_message_bytes = 134217728\n", "found 268435456"),
        ("[limits]\nmax_message_bytes = 1\nbody_bytes = 8388607\n", "8 MiB"),
        (
            "[limits]\nconnections_per_peer = 0\n",
            "limits.connections_per_peer: expected at least 1",
        ),
        ("[target]\ndevice = \"tpu\"\n", "target.device"),
        ("[target]\nproducts = \"int8\"\n", "target.products"),
        ("[target]\nmax_sequences = 0\n", "target.max_sequences: expected 1 to 128"),
        ("[target]\nmax_sequences = 129\n", "found 129"),
        ("limits = 3\n", "limits"),
        ("[drafter]\nkind = \"eagle\"\n", "drafter.kind: expected one of auto, assistant"),
        ("[drafter]\nthreads = 0\n", "drafter.threads"),
        ("[drafter]\nstart = \"soon\"\n", "drafter.start"),
        ("[drafter]\nquantize = \"q2\"\n", "drafter.quantize"),
        ("[kv]\nhidden_window = 65537\n", "kv.hidden_window: expected at most 65536"),
        ("[routing]\nkv_pressure = 0\n", "routing.kv_pressure"),
        ("[routing]\nmax_concurrent = -1\n", "routing.max_concurrent"),
    ] {
        let error = refusal(text, &[]);
        assert!(error.contains(expected), "{text:?}: {error}");
    }
}

#[test]
fn settings_without_effect_and_dangerous_ones_are_warned_about_by_name() {
    let warned = |text: &str| build(text, &[]).expect("accepted").warnings.join(" ");
    assert!(warned("[log]\nprompts = true\n").contains("log.prompts is on"));
    assert!(refusal("[target]\nprompt_chunk_ms = 9\n", &[]).contains("expected 10 to 5000"));
    let refused = refusal("[target]\nwired = \"always\"\n", &[]);
    assert!(refused.contains("wired") && refused.contains("`off` or `running`"), "{refused}");
    assert!(refusal("[limits]\ncontext_tokens = 1\n", &[]).contains("at least 2"));
    assert!(
        refusal("[limits]\nmax_images = 0\n", &[])
            .contains("limits.max_images: expected at least 1")
    );
    assert!(
        refusal("", &[("PACELINE_LIMITS__MAX_IMAGE_PIXELS", "0")])
            .contains("limits.max_image_pixels")
    );
    let loaded = build("[classes]\nalice = \"code\"\n", &[]).expect("accepted with a warning");
    assert!(loaded.warnings.iter().any(|line| line.starts_with("classes")));
}

#[test]
fn an_address_that_other_machines_reach_needs_keys_and_tls() {
    let keys = "api_keys_file = \"k\"\n";
    let tls = "tls_cert = \"c\"\ntls_key = \"d\"\n";
    for address in ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "[2001:db8::1]:1", "[::ffff:192.0.2.1]:1"]
    {
        for key in ["grpc", "http"] {
            let with =
                |more: &str| build(&format!("[gateway]\n{key} = \"{address}\"\n{more}"), &[]);
            for (more, missing) in [("", "neither keys"), (keys, "no TLS"), (tls, "no keys")] {
                let error = with(more).expect_err("open to the network").to_string();
                assert!(
                    error.contains(&format!("gateway.{key}"))
                        && error.contains(missing)
                        && error.contains("gateway.insecure"),
                    "{error}"
                );
            }
            assert!(
                with(&format!("{keys}{tls}")).is_ok() && with("insecure = true\n").is_ok(),
                "{key} {address}"
            );
        }
    }
    for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        for key in ["grpc", "http"] {
            let text = format!("[gateway]\n{key} = \"{address}\"\n");
            assert!(build(&text, &[]).is_ok(), "{key} {address}");
        }
    }
}

#[test]
fn the_http_address_may_be_none_and_is_not_that_of_grpc() {
    let loaded = build("[gateway]\nhttp = \"\"\n", &[]).expect("no HTTP");
    assert_eq!((loaded.config.gateway.http.as_str(), loaded.warnings.len()), ("", 0));
    let both = "[gateway]\ngrpc = \"127.0.0.1:5\"\nhttp = \"127.0.0.1:5\"\n";
    assert!(
        refusal(both, &[]).contains("gateway.http: expected another address than gateway.grpc")
    );
    let free = "[gateway]\ngrpc = \"127.0.0.1:0\"\nhttp = \"127.0.0.1:0\"\n";
    assert!(build(free, &[]).is_ok());
}

#[test]
fn ollamas_api_has_an_address_of_its_own_or_that_of_http() {
    for free in ["127.0.0.1:7", "127.0.0.1:0"] {
        let text = format!("[gateway]\ngrpc = \"127.0.0.1:0\"\nollama = {free:?}\n");
        let loaded = build(&text, &[]).expect("an address");
        assert_eq!(loaded.config.gateway.ollama.address(), Some(free));
    }
    let served = |text: &str| build(text, &[]).expect("a form").config.gateway.ollama.is_served();
    assert!(served("[gateway]\nollama = true\n") && !served("[gateway]\nollama = \"off\"\n"));
    for (text, found) in [
        ("grpc = \"127.0.0.1:5\"\nollama = \"127.0.0.1:5\"", "found 127.0.0.1:5"),
        ("http = \"\"\nollama = true", "expected off, because there is no HTTP"),
        ("ollama = \"nowhere\"", "expected an address like 127.0.0.1:11434, on or off"),
    ] {
        let refused = refusal(&format!("[gateway]\n{text}\n"), &[]);
        assert!(refused.contains("gateway.ollama: ") && refused.contains(found), "{refused}");
    }
}

#[test]
fn lists_are_arrays_in_the_file_and_texts_with_commas_in_the_environment() {
    let text = "[gateway]\nmodel_aliases = [\"gpt-5\"]\ncors_origins = [\"https://a.example\"]\n";
    let gateway = build(text, &[]).expect("accepted").config.gateway;
    assert_eq!(gateway.model_aliases, ModelAliases::Named(vec!["gpt-5".to_owned()]));
    assert_eq!(gateway.cors_origins, ["https://a.example"]);
    let environment = [
        ("PACELINE_GATEWAY__MODEL_ALIASES", "*"),
        ("PACELINE_GATEWAY__CORS_ORIGINS", "https://b.example, http://localhost:3000"),
        ("PACELINE_GATEWAY__HOSTS", "box.lan, Box"),
        ("PACELINE_GATEWAY__TOOL_FORMAT", "qwen_xml"),
    ];
    let gateway = build(text, &environment).expect("accepted").config.gateway;
    assert_eq!(gateway.model_aliases, ModelAliases::Any);
    assert_eq!(gateway.cors_origins, ["https://b.example", "http://localhost:3000"]);
    assert_eq!(gateway.hosts, ["box.lan", "Box"]);
    assert_eq!(gateway.tool_format, ToolFormat::QwenXml);
}

#[test]
fn a_worker_is_reloaded_only_for_settings_that_it_reads() {
    // By the target, by the drafter.
    let readers = |key: &str| match key {
        "supervisor.runtime_dir" | "supervisor.lease_s" | "target.device" | "target.products" => {
            (true, true)
        }
        // If no drafter is named, as by default, the target decides which one there is.
        "target.model" => (true, true),
        "target.threads"
        | "target.keep_quantized"
        | "target.vision"
        | "target.max_sequences"
        | "target.prompt_chunk_ms"
        | "target.wired"
        | "target.exact_lanes"
        | "target.saved_costs" => (true, false),
        "kv.budget_bytes" | "kv.budget_fraction" | "kv.prefix_cache" | "kv.hidden_window" => {
            (true, false)
        }
        "drafter.model"
        | "drafter.kind"
        | "drafter.threads"
        | "drafter.quantize"
        | "drafter.draft_vocabulary"
        | "drafter.max_tokens"
        | "drafter.prefix_bytes" => (false, true),
        _ => (false, false),
    };
    let digests = |config: &Config| (config.target_digest(), config.drafter_digest());
    let usual = digests(&Config::default());
    let known = toml::Table::try_from(Config::default()).expect("plain");
    for key in all_keys(&known) {
        let Some((section, name)) = key.split_once('.') else { continue };
        let (target, drafter) = digests(&changed(&known, section, name));
        assert_eq!((target != usual.0, drafter != usual.1), readers(&key), "{key}");
    }
    let classes =
        Config { classes: [("alice".to_owned(), "code".to_owned())].into(), ..Default::default() };
    assert_eq!(digests(&classes), usual);
    let models = |target: &str| {
        let mut config = Config::default();
        (config.target.model, config.drafter.model) = (target.to_owned(), DrafterModels::one("/d"));
        digests(&config)
    };
    assert!(models("/a").0 != models("/b").0 && models("/a").1 == models("/b").1);
}

/// The defaults with another value of this key.
fn changed(known: &toml::Table, section: &str, key: &str) -> Config {
    let mut values: Vec<toml::Value> = [true, false].map(toml::Value::from).to_vec();
    values.extend([toml::Value::from(77), toml::Value::from(0.25)]);
    values.extend(
        ["cpu", "lazy", "q4", "plain", "json", "hermes", "running", "on", "float"]
            .map(toml::Value::from),
    );
    let config = values.into_iter().find_map(|value| {
        let mut table = known.clone();
        table.get_mut(section)?.as_table_mut()?.insert(key.to_owned(), value);
        table.try_into::<Config>().ok().filter(|config| *config != Config::default())
    });
    config.unwrap_or_else(|| panic!("none of these values can be that of {section}.{key}"))
}

#[test]
fn the_drafters_settings_are_accepted_without_warning() {
    let text = "[drafter]\nmodel = \"/d\"\nkind = \"dflash\"\nstart = \"lazy\"\nthreads = 2\nquantize = \"q4\"\nidle_stop_s = 60\nprefix_bytes = 5\n\
                [routing]\nroute_log = \"r\"\nmax_concurrent = 8\nmax_context = 100\nkv_pressure = 0.5\n[kv]\nhidden_window = 0\n";
    let loaded = build(text, &[("PACELINE_ROUTING__MAX_CONTEXT", "auto")]).expect("accepted");
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let config = loaded.config;
    assert_eq!((config.drafter.start, config.drafter.threads), (DrafterStart::Lazy, Auto::Is(2)));
    assert_eq!(
        (config.drafter.prefix_bytes, Config::default().drafter.prefix_bytes),
        (5, 256 << 20)
    );
    assert_eq!(
        (config.routing.max_concurrent, config.routing.max_context),
        (Auto::Is(8), Auto::Auto)
    );
}

#[test]
fn an_embedded_drafter_goes_with_its_target_and_lookup_with_every_other() {
    let mut config = Config::default();
    let of_smollm2 = DrafterChoice::Directory(demo_dir("smollm2/drafter").expect("there"));
    assert_eq!(config.drafter_choices(), std::slice::from_ref(&of_smollm2), "smollm2");
    config.target.model = "/c/paceline/models/smollm2".into();
    assert_eq!(config.drafter_choices(), [of_smollm2], "by its directory");
    for (target, folder, drafter) in
        [("demo-target", "target", "drafter"), ("demo-vision", "vision/target", "vision/drafter")]
    {
        let [folder, drafter] =
            [folder, drafter].map(|name| demo_dir(name).expect("in the source tree"));
        for target in [target, &folder.display().to_string()] {
            config.target.model = target.into();
            let expected = [DrafterChoice::Directory(drafter.clone())];
            assert_eq!(config.drafter_choices(), expected, "{target}");
        }
    }
    config.drafter.kind = "lookup".into();
    assert_eq!(config.drafter_choices(), [DrafterChoice::Lookup]);
    config = Config::default();
    config.target.model = "/t".into();
    assert_eq!(config.drafter_choices(), [DrafterChoice::Lookup]);
    let there = || DrafterChoice::Directory("/nowhere/d".into());
    for (model, expected) in
        [("/nowhere/d", vec![there()]), ("lookup", vec![DrafterChoice::Lookup]), ("", vec![])]
    {
        config.drafter.model = DrafterModels::one(model);
        for target in ["/t", "demo-target"] {
            config.target.model = target.into();
            assert_eq!(config.drafter_choices(), expected, "{model} {target}");
        }
    }
    // A directory of that name.
    config.drafter.model = DrafterModels::one("./lookup");
    let choices = config.drafter_choices();
    assert!(matches!(choices.as_slice(), [DrafterChoice::Directory(dir)] if dir.is_absolute()));
}

#[test]
fn a_known_target_gets_the_drafter_of_its_row_if_that_is_on_this_machine() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let own = dir.path().canonicalize().expect("there").join("paceline/models");
    let places = ModelPlaces { own: Some(own.clone()), ..ModelPlaces::default() };
    let drafter = |target: &str| {
        let mut config = Config::default();
        config.target.model = target.to_owned();
        config.drafter_of_target(&places)
    };
    assert_eq!(drafter("qwen3-8b"), None, "it is not here");
    let revision = own.join("z-lab--Qwen3-8B-DFlash-b16/c");
    std::fs::create_dir_all(&revision).expect("made");
    for name in ["config.json", "model.safetensors"] {
        std::fs::write(revision.join(name), "{}").expect("written");
    }
    std::os::unix::fs::symlink("c", revision.with_file_name("current")).expect("linked");
    let target = own.join("mlx-community--Qwen3-8B-4bit/0123").display().to_string();
    for target in ["qwen3-8b", "mlx-community/Qwen3-8B-4bit", &target] {
        assert_eq!(drafter(target), Some(DrafterChoice::Directory(revision.clone())), "{target}");
    }
    for target in ["coder", "qwen3-4b", "Qwen/Qwen3-8B"] {
        assert_eq!(drafter(target), None, "{target}");
    }
}

#[test]
fn the_targets_head_has_the_same_name_in_every_process_and_is_of_kind_mtp() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut config = Config::default();
    config.target.model = dir.path().display().to_string();
    config.drafter.model = DrafterModels::of(vec!["target".into(), "lookup".into()]);
    assert_eq!(config.drafter_choices(), [DrafterChoice::TargetHead, DrafterChoice::Lookup]);
    assert!(config.missing_drafters().is_empty());
    config.resolve_models().expect("the target is there");
    assert_eq!(config.model_variables().map(|(_, model)| model)[1], "target,lookup");
    let files = |config: &Config, name: &str| {
        config.drafter_files(&config.drafter_named(name)).expect("the target is there")
    };
    let head = files(&config, "target").expect("files");
    assert_eq!((head.dir.as_path(), head.kind.as_str()), (dir.path(), "mtp"));
    assert_eq!(files(&config, "lookup"), None);
    config.drafter.kind = "dflash".into();
    assert_eq!(files(&config, "/d").map(|files| files.kind).as_deref(), Some("dflash"));
    assert_eq!(files(&config, "target").expect("files").kind, "mtp");
    for (kind, of_files, lookup) in [
        ("auto", "auto", None),
        ("eagle3", "eagle3", Some(false)),
        ("lookup+eagle3", "eagle3", Some(true)),
    ] {
        config.drafter.kind = kind.into();
        let found = files(&config, "/d").expect("files");
        assert_eq!((found.kind.as_str(), found.lookup), (of_files, lookup));
        assert_eq!(files(&config, "target").expect("files").lookup, lookup, "{kind}");
    }
    let digest = config.drafter_digest();
    config.target.model = "/other".into();
    assert_ne!(config.drafter_digest(), digest, "the target is the drafter's checkpoint");
    for (model, kind, fits) in [
        ("\"target\"", "auto", true),
        ("\"target\"", "mtp", true),
        ("[\"target\", \"/d\"]", "dflash", true),
        ("\"target\"", "dflash", false),
        ("[\"target\", \"lookup\"]", "eagle3", false),
        ("\"target\"", "lookup", false),
        ("\"target\"", "lookup+mtp", true),
        ("\"/d\"", "lookup+eagle3", true),
        ("\"target\"", "lookup+eagle3", false),
        ("\"lookup\"", "lookup+model", false),
        ("\"/d\"", "lookup+dflash", false),
    ] {
        let text = format!("[drafter]\nmodel = {model}\nkind = {kind:?}\n");
        assert_eq!(build(&text, &[]).is_ok(), fits, "{text}");
    }
}

#[test]
fn names_of_models_become_directories_once_and_clients_keep_the_name() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().display().to_string();
    let mut config = Config::default();
    config.target.model = "demo-target".to_owned();
    config.resolve_models().expect("it is embedded");
    let embedded = |name: &str| demo_dir(name).expect("there").display().to_string();
    let resolved = config.model_variables().map(|(_, model)| model);
    assert_eq!(resolved, [embedded("target"), embedded("drafter")]);
    assert_eq!(config.model_name(), "demo-target", "also by its directory");
    let drafter = || DrafterModels::one("no-such/drafter");
    (config.target.model, config.drafter.model) = (path.clone(), drafter());
    config.resolve_models().expect("the target is there, and the drafter need not be");
    assert_eq!(config.target.model, path);
    let resolved = config.drafter.model.to_string();
    assert!(resolved.ends_with("/paceline/models/no-such--drafter/current"), "{resolved}");
    let refused = {
        config.drafter.model = drafter();
        config.missing_drafters()[0].to_string()
    };
    assert!(
        refused.starts_with("configuration key drafter.model: ")
            && refused.contains("`paceline pull no-such/drafter`"),
        "{refused}"
    );
    config.target.model = "no-such/target".to_owned();
    let refused = config.resolve_models().expect_err("not there").to_string();
    assert!(refused.contains("target.model: no-such/target was not pulled"), "{refused}");
    for (model, name) in [
        ("", "smollm2"),
        ("smollm2", "smollm2"),
        ("demo-target", "demo-target"),
        ("demo-vision", "demo-vision"),
        ("qwen3-8b", "mlx-community/Qwen3-8B-4bit"),
        ("org/name", "org/name"),
        ("/c/paceline/models/org--name/0123", "org/name"),
        ("/models/qwen", "qwen"),
    ] {
        config.target.model = model.to_owned();
        assert_eq!(config.model_name(), name, "{model}");
    }
}

#[test]
fn a_named_file_must_exist() {
    let error = Loaded::build(Some(Path::new("/nowhere/paceline.toml")), &[])
        .expect_err("refused")
        .to_string();
    assert!(error.contains("/nowhere/paceline.toml"));
}

#[test]
fn a_setting_that_is_not_utf8_is_refused_by_name_and_foreign_bytes_are_left_out() {
    use std::os::unix::ffi::OsStringExt as _;
    let variable = |name: &[u8], value: &[u8]| {
        (OsString::from_vec(name.to_vec()), OsString::from_vec(value.to_vec()))
    };
    let foreign = [
        variable(b"LS_COLORS", b"\xff\xfe"),
        variable(b"\xc3(", b"x"),
        variable(b"PACELINE_MLX_DIR", b"/opt/\xff"),
        variable(b"PACELINE_LIMITS__QUEUE", b"7"),
    ];
    let kept = text_variables(foreign.into_iter()).expect("nothing of ours is wrong");
    assert_eq!(kept, [("PACELINE_LIMITS__QUEUE".to_owned(), "7".to_owned())]);
    for (name, value) in [
        (&b"PACELINE_TARGET__MODEL"[..], &b"/models/\xff"[..]),
        (b"PACELINE_CONFIG", b"\xff.toml"),
        (b"PACELINE_TARGET__\xff", b"x"),
    ] {
        let error =
            text_variables([variable(name, value)].into_iter()).expect_err("refused").to_string();
        assert!(
            error.contains(&*String::from_utf8_lossy(name)) && error.contains("expected UTF-8"),
            "{error}"
        );
    }
}
