//! `paceline bench` on a real service of its own: what it measures is what it says, and nothing of
//! it stays. No speed is asserted: how fast is the machine's affair, and what follows from speeds
//! is tested with numbers in `bench`.

use std::process::Output;

use paceline_tests::procs::{self, MARK};
use paceline_tests::{Stack, repository, wait};
use serde_json::Value;

/// Runs a bench on these settings, and checks that none of its processes is left.
fn bench(settings: &str, words: &[&str]) -> Output {
    let stack = Stack::new(settings);
    let mark = stack.path("bench").display().to_string();
    let mut command = stack.command(&[&["bench"], words].concat());
    let output = command.env(MARK, &mark).output().expect("it runs");
    wait("the end of all processes of the bench", || procs::marked(&mark).is_empty().then_some(()));
    output
}

fn words(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn object(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// Of the lane `mode` of the row `row`.
fn figure<'a>(object: &'a Value, row: usize, mode: &str, name: &str) -> &'a Value {
    let lanes = object["rows"][row]["lanes"].as_array().expect("lanes");
    &lanes
        .iter()
        .find(|lane| lane["mode"] == mode)
        .unwrap_or_else(|| panic!("no lane {mode}: {lanes:?}"))[name]
}

#[test]
fn a_sweep_measures_each_cell_with_and_without_a_drafter() {
    let flags = "--sweep --kinds json,prose --concurrency 2 --runs 2 --max-tokens 12 --json";
    let output = bench("", &flags.split(' ').collect::<Vec<_>>());
    let (code, err) = words(&output);
    assert_eq!(code, Some(0), "{err}");
    let object = object(&output);
    let cells: Vec<_> =
        (0..2).map(|row| (&object["rows"][row]["kind"], &object["rows"][row]["streams"])).collect();
    assert_eq!(cells, [(&"json".into(), &2.into()), (&"prose".into(), &2.into())], "{object}");
    for row in 0..2 {
        for mode in ["absent", "forced", "routed"] {
            let speeds = figure(&object, row, mode, "tok_s").as_array().expect("speeds");
            assert!(
                speeds.len() == 2
                    && speeds.iter().all(|speed| speed.as_f64().is_some_and(|speed| speed > 0.0)),
                "{speeds:?}"
            );
            // Two runs of eight requests, each in both orders.
            assert_eq!(figure(&object, row, mode, "answers"), 32);
            assert_eq!(figure(&object, row, mode, "waited"), 0);
        }
        assert_eq!(figure(&object, row, "absent", "drafted"), 0);
        assert!(
            figure(&object, row, "forced", "drafted").as_u64().is_some_and(|drafted| drafted > 0),
            "{object}"
        );
        assert_eq!(object["rows"][row]["verdict"]["outcome"], "too_few_runs");
    }
    // The first answers to 16 prompts come in the warm-up or in the first run. All later answers
    // are compared: 2 x 3 x 32, and 2 x 3 x 8 of the warm-up, without the first of each prompt.
    assert_eq!(object["same"]["answers"], 2 * 3 * 32 + 2 * 3 * 8 - 16, "{object}");
    assert_eq!(
        object["same"]["different"],
        serde_json::json!([]),
        "the lanes differ: {}",
        object["same"]
    );
    assert!(err.contains("about") && err.contains("run 2 of 2: prose x 2: absent "), "{err}");
}

/// The demo target without a drafter.
fn alone() -> String {
    let target = repository().join("demo/target");
    format!("target.model = {target:?}\ndrafter.model = \"\"\n")
}

#[test]
fn the_short_form_compares_lanes_and_needs_no_drafter() {
    let output = bench("", &["--kinds", "code", "--runs", "1", "--max-tokens", "8"]);
    let (code, err) = words(&output);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(code, Some(0), "{err}");
    assert!(
        text.starts_with("KIND  AT ONCE  PLAIN tok/s") && text.contains("FORCED tok/s"),
        "{text}"
    );
    assert!(text.contains("compared with the first to their prompt: equal"), "{text}");

    let alone = alone();
    let output = bench(&alone, &["--kinds", "code", "--runs", "1", "--max-tokens", "8", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{:?}", words(&output));
    let object = object(&output);
    assert_eq!(object["rows"][0]["lanes"].as_array().map(Vec::len), Some(1), "{object}");
    assert_eq!((&object["drafter"], &object["rows"][0]["verdict"]), (&Value::Null, &Value::Null));
}

#[test]
fn tables_measure_the_target_alone_and_the_roofline_says_what_memory_allows() {
    let flags =
        "--tables --roofline --lengths 64,300 --concurrency 1,3 --max-tokens 64 --runs 2 --json";
    let output = bench("", &flags.split(' ').collect::<Vec<_>>());
    let (code, err) = words(&output);
    assert_eq!(code, Some(0), "{err}");
    let object = object(&output);
    let rows = object["rows"].as_array().expect("rows");
    let shapes: Vec<_> =
        rows.iter().map(|row| (row["prompt_tokens"].as_u64(), row["streams"].as_u64())).collect();
    assert_eq!(shapes, [(Some(64), Some(1)), (Some(300), Some(1)), (Some(64), Some(3))]);
    for row in rows {
        for figure in [&row["pp_tok_s"], &row["tg_tok_s"]] {
            let values = figure["values"].as_array().expect("values");
            let sane =
                |value: &Value| value.as_f64().is_some_and(|value| value > 1.0 && value < 1e6);
            assert!(values.len() == 2 && values.iter().all(sane), "{row}");
            assert!(figure["median"].as_f64() > Some(0.0) && figure["interval"].is_null(), "{row}");
        }
        assert_eq!((&row["waited"], &row["apart"]), (&0.into(), &0.into()), "{row}");
        // Speeds are not compared with a number: other processes may slow down either measurement.
        let values = |figure: &Value| -> Vec<f64> {
            let all = figure["values"].as_array();
            all.into_iter().flatten().filter_map(Value::as_f64).collect()
        };
        let (shares, bounds) = (values(&row["bound"]["share"]), values(&row["bound"]["tok_s"]));
        assert_eq!(shares.len(), if row["streams"] == 1 { 2 } else { 0 }, "{row}");
        for ((share, bound), speed) in shares.iter().zip(bounds).zip(values(&row["tg_tok_s"])) {
            assert!((share * bound / speed - 1.0).abs() < 1e-9, "{row}");
        }
    }
    // The demo's weights are float32, and its head is its embedding. A token reads all of them, and
    // for each position 8 layers of keys and values of 2 heads of 64.
    let weights = object["target"]["weight_bytes"].as_u64().expect("bytes");
    let (read, position) =
        (object["model"]["weight_bytes"].as_u64(), object["model"]["position_bytes"].as_u64());
    assert!(
        read >= Some(weights)
            && read < Some(weights * 3 / 2)
            && position == Some(8 * 2 * 2 * 64 * 4),
        "{object}"
    );
    let expected = read.expect("bytes") as f64 + 8_192.0 * (64.0 + 32.0);
    assert_eq!(rows[0]["bound"]["token_bytes"].as_f64(), Some(expected));
    let speeds = object["memory"]["bytes_s"]["values"].as_array().expect("speeds");
    assert!(
        speeds.len() == 2
            && speeds.iter().all(|speed| speed.as_f64().is_some_and(|speed| speed > 1e8)),
        "{object}"
    );
    assert!(
        object["memory"]["threads"].as_u64() >= Some(1)
            && object["memory"]["buffer_bytes"].as_u64() >= Some(64 << 20)
    );
    // No prompt was in the cache before, each was then, and gave the same first token.
    assert_eq!(
        (&object["cached"], &object["same"]["prompts"]),
        (&0.into(), &(2 * (1 + 1 + 3)).into())
    );
    assert_eq!(object["same"]["differences"], serde_json::json!([]), "{}", object["same"]);
    assert_eq!(object["drafter"], Value::Null, "the target is measured alone");
    assert!(err.contains("run 2 of 2: 300 tokens x 1: pp "), "{err}");
}

#[test]
fn the_table_is_readable_and_a_too_long_prompt_is_refused() {
    let output = bench(
        "",
        &["--tables", "--lengths", "64", "--concurrency", "2", "--runs", "1", "--max-tokens", "64"],
    );
    let (code, err) = words(&output);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(code, Some(0), "{err}");
    assert!(text.starts_with("PROMPT  AT ONCE  PP tok/s"), "{text}");
    assert!(
        text.contains("identity: first tokens of 2 prompts, for the first time and again: equal"),
        "{text}"
    );

    let (code, err) = words(&bench("", &["--roofline", "--lengths", "4090", "--runs", "1"]));
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("at most 4032") && err.contains("found 4090"), "{err}");
}

#[test]
fn another_build_is_measured_in_turn_on_the_same_models() {
    let here = paceline_tests::programs().display().to_string();
    let flags = ["--kinds", "json", "--runs", "2", "--max-tokens", "12", "--json", "--against"];
    let output = bench("", &[&flags[..], &[&here]].concat());
    let (code, err) = words(&output);
    assert_eq!(code, Some(0), "{err}");
    let object = object(&output);
    let other = object["rows"][0]["over_other"].as_array().expect("the other build");
    let modes: Vec<&str> = other.iter().filter_map(|one| one[0].as_str()).collect();
    assert_eq!(modes, ["plain", "forced", "routed"], "{object}");
    for ratios in other.iter().map(|one| &one[1]["values"]) {
        let ratios: Vec<f64> =
            ratios.as_array().expect("ratios").iter().filter_map(Value::as_f64).collect();
        assert!(ratios.len() == 2 && ratios.iter().all(|ratio| *ratio > 0.0), "{ratios:?}");
    }

    let (code, err) = words(&bench("", &["--kinds", "json", "--against", "/nowhere"]));
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("expected /nowhere/paceline, found nothing"), "{err}");
}

#[test]
fn a_benchmark_that_cannot_run_names_the_reason() {
    let alone = alone();
    let (code, err) = words(&bench(&alone, &["--sweep", "--runs", "1"]));
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("--drafter"), "{err}");

    // Room for one sequence or two, not for eight.
    let output = bench(
        "kv.budget_bytes = 4000000\nlimits.queue_wait_s = 300\n",
        &["--kinds", "json", "--runs", "1", "--concurrency", "8", "--max-tokens", "8", "--json"],
    );
    let (code, err) = words(&output);
    assert_eq!(code, Some(1), "{err}");
    assert_eq!(object(&output)["error"]["reason"], "BENCH");
    assert!(
        err.contains("expected 8 requests at once") && err.contains("kv.budget_bytes"),
        "{err}"
    );
}

/// A tiny model that reads images, with a context that no stream reaches the end of while images are
/// read: in its own one streams last a second on a fast machine.
fn seeing() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    let files = std::fs::read_dir(repository().join("models/tests/golden/qwen3-vl-tiny"));
    for file in files.expect("there").filter_map(Result::ok).filter(|one| one.path().is_file()) {
        std::fs::copy(file.path(), dir.path().join(file.file_name())).expect("copied");
    }
    let path = dir.path().join("config.json");
    let text = std::fs::read(&path).expect("there");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    config["text_config"]["max_position_embeddings"] = 32_768.into();
    std::fs::write(&path, config.to_string()).expect("written");
    dir
}

#[test]
fn images_are_measured_by_stage_and_beside_streams() {
    let seeing = seeing();
    let model = seeing.path().display().to_string();
    let output = bench("", &["--images", "--runs", "1", "--json", "--model", &model]);
    let (code, err) = words(&output);
    assert_eq!(code, Some(0), "{err}");
    let object = object(&output);
    let rows = object["rows"].as_array().expect("rows");
    let sizes: Vec<_> = rows.iter().filter_map(|row| row["size"].as_str()).collect();
    assert_eq!(sizes, ["224 x 224", "640 x 480", "1280 x 960"]);
    let of = |figure: &Value| {
        figure["values"]
            .as_array()
            .expect("values")
            .iter()
            .filter_map(Value::as_f64)
            .collect::<Vec<_>>()
    };
    for row in rows {
        let first = row["first"].as_array().expect("ways to meet an image");
        assert_eq!(
            first.iter().filter_map(|one| one["meeting"].as_str()).collect::<Vec<_>>(),
            ["new", "next turn", "elsewhere"]
        );
        for one in first {
            for stage in ["decode_ms", "resize_ms", "prefill_ms", "ttft_ms"] {
                let values = of(&one[stage]);
                assert!(values.len() == 1 && values.iter().all(|ms| *ms > 0.0), "{stage}: {one}");
            }
            // No stage is in another one, and all are in the time to the first token.
            assert!(of(&one["rest_ms"]).iter().all(|ms| *ms >= 0.0), "{one}");
        }
        let towers: Vec<_> = first.iter().map(|one| one["towers"].as_u64()).collect();
        assert_eq!(
            towers,
            [Some(1), Some(0), Some(0)],
            "a new image is seen, a known one is not: {row}"
        );
        // Pages of 64 rows; what a page has of the first turn's prompt is all that can be found.
        let (tokens, cached) =
            (first[1]["prompt_tokens"].as_u64(), first[1]["cached_tokens"].as_u64());
        assert!(cached > Some(0) && cached < tokens, "{row}");
        for window in ["alone", "beside"] {
            let gaps = &row[window];
            for figure in ["median_ms", "p95_ms", "longest_ms", "tok_s", "window_ms"] {
                assert!(of(&gaps[figure]).iter().all(|value| *value > 0.0), "{figure}: {gaps}");
            }
            let (median, longest) = (of(&gaps["median_ms"]), of(&gaps["longest_ms"]));
            assert!(
                median.iter().zip(&longest).all(|(median, longest)| median <= longest),
                "{gaps}"
            );
        }
        assert!(
            of(&row["beside_ttft_ms"]).iter().all(|ms| *ms > 0.0) && of(&row["kept"]).len() == 1,
            "{row}"
        );
    }
    assert_eq!((&object["left_out"], &object["drafter"]), (&serde_json::json!([]), &Value::Null));
    assert!(err.contains("run 1 of 1: 224 x 224: first token after "), "{err}");
}

#[test]
fn image_benchmarks_need_a_model_with_vision() {
    let output = bench("", &["--images", "--runs", "1", "--json"]);
    let (code, err) = words(&output);
    assert_eq!(code, Some(1), "{err}");
    assert_eq!(object(&output)["error"]["reason"], "BENCH");
    assert!(err.contains("vision tower") && err.contains("--model"), "{err}");
}

/// Medians of one figure of all rows.
fn medians(rows: &Value, figure: &str) -> Vec<f64> {
    let rows = rows.as_array().expect("rows");
    rows.iter().filter_map(|row| row[figure]["median"].as_f64()).collect()
}

#[test]
fn contexts_are_measured_in_each_lane_up_to_the_models_own() {
    let flags = "--contexts 64,8192 --runs 1 --max-tokens 4 --output llama-bench";
    let output = bench("", &flags.split(' ').collect::<Vec<_>>());
    let (code, err) = words(&output);
    assert_eq!(code, Some(0), "{err}");
    let object = object(&output);
    let tests = object.as_array().expect("an array");
    let shape = |test: &Value| {
        let count = |name: &str| test[name].as_u64().expect("a count");
        (count("n_prompt"), count("n_gen"), count("n_depth"), test["lane"].clone())
    };
    let expected = |lane: &str| [(64, 0, 0, lane.into()), (0, 4, 64, lane.into())];
    assert_eq!(
        tests.iter().map(shape).collect::<Vec<_>>(),
        ["absent", "forced", "routed"].map(expected).concat()
    );
    for test in tests {
        let (ns, ts) = (test["avg_ns"].as_f64(), test["avg_ts"].as_f64());
        let tokens = test["n_prompt"].as_u64().max(test["n_gen"].as_u64()).expect("tokens") as f64;
        let rate = ts.expect("a speed") * ns.expect("a time") / 1e9;
        assert!((rate / tokens - 1.0).abs() < 1e-6, "{test}");
        assert_eq!(test["samples_ts"].as_array().map(Vec::len), Some(1));
        // 7.3 million parameters in float32.
        assert_eq!(test["model_size"].as_u64(), test["model_n_params"].as_u64().map(|n| 4 * n));
        assert_eq!((&test["model_type"], &test["n_batch"]), (&"qwen3, float".into(), &Value::Null));
        assert!(test["test_time"].as_str().is_some_and(|time| time.ends_with('Z')), "{test}");
    }
    assert!(err.contains("run 1 of 1: 64 tokens: absent pp "), "{err}");
}

#[test]
fn a_context_is_drafted_for_in_the_forced_lane_and_not_without_a_drafter() {
    let flags = "--contexts 64 --runs 1 --max-tokens 16 --json";
    let output = bench("", &flags.split(' ').collect::<Vec<_>>());
    let (code, err) = words(&output);
    assert_eq!(code, Some(0), "{err}");
    let object = object(&output);
    assert_eq!(figure(&object, 0, "absent", "cycles"), 0, "{object}");
    assert!(figure(&object, 0, "forced", "cycles").as_u64() > Some(0), "{object}");
}

#[test]
fn a_session_finds_its_prefix_and_a_clean_prompt_finds_none() {
    let flags = "--clean --session --lengths 200 --runs 1 --max-tokens 2 --json";
    let output = bench("", &flags.split(' ').collect::<Vec<_>>());
    let (code, err) = words(&output);
    assert_eq!(code, Some(0), "{err}");
    let object = object(&output);
    let rows = object["rows"].as_array().expect("rows");
    let places: Vec<_> = rows.iter().map(|row| (&row["form"], &row["request"])).collect();
    let place = |form: &str| {
        ["first", "next", "short_after", "short_alone"].map(|request| (form.into(), request.into()))
    };
    let expected: Vec<(Value, Value)> = [place("clean"), place("session")].concat();
    assert_eq!(places, expected.iter().map(|(form, request)| (form, request)).collect::<Vec<_>>());
    let cached = |form: &str| {
        let row = rows.iter().find(|row| row["form"] == form && row["request"] == "next");
        row.expect("a second turn")["cached_tokens"][0].as_u64()
    };
    // Whole pages of 64 tokens.
    assert_eq!(cached("clean"), Some(0), "{object}");
    assert!(cached("session") >= Some(192), "{object}");
    assert_eq!(medians(&object["rows"], "ttft_ms").len(), 8);
    assert!(object["gains"][0]["ttft_over_clean"]["median"].as_f64() > Some(0.0), "{object}");
    assert!(object["peak_memory"]["target_bytes"].as_u64() > Some(1 << 20), "{object}");
}

#[test]
fn a_burst_is_measured_between_two_streams() {
    let output = bench(&alone(), &["--burst", "2", "--runs", "1", "--max-tokens", "40", "--json"]);
    let (code, err) = words(&output);
    assert_eq!(code, Some(0), "{err}");
    let object = object(&output);
    for figure in ["before_tok_s", "burst_tok_s", "burst_ttft_ms", "after_tok_s", "back"] {
        let found = medians(&object["rows"], figure);
        assert!(found.len() == 1 && found[0] > 0.0, "{figure}: {object}");
    }
    assert_eq!(object["rows"][0]["mode"], "plain", "{object}");
    assert!(err.contains("run 1 of 1: 2 requests, plain: before "), "{err}");
}

#[test]
fn own_prompts_are_a_kind_and_each_form_has_the_same_rows() {
    let stack = Stack::new(&alone());
    let file = stack.path("own.jsonl");
    let lines = r#"{"prompt": "Name a river."}
{"messages": [{"role": "user", "content": "Name another one."}]}
"#;
    std::fs::write(&file, lines).expect("written");
    let name = file.display().to_string();
    let flags = ["--runs", "1", "--max-tokens", "4", "--concurrency", "1,2", "--output", "csv"];
    let output = bench(&alone(), &[&["--prompts", &name], &flags[..]].concat());
    let (code, err) = words(&output);
    assert_eq!(code, Some(0), "{err}");
    let csv = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines.len(), 1 + 2, "{csv}");
    assert!(lines.iter().all(|line| line.len() == lines[0].len()), "{csv}");
    let field = |line: usize, name: &str| {
        let at = lines[0].iter().position(|known| *known == name).expect("a column");
        lines[line][at]
    };
    assert_eq!((field(1, "kind"), field(1, "streams")), ("own", "1"));
    assert_eq!((field(2, "streams"), field(2, "lane")), ("2", "plain"));
    for figure in
        ["ttft_ms", "tpot_ms", "prompt_tok_s", "decode_tok_s", "e2e_ms", "throughput_tok_s"]
    {
        assert!((1..=2).all(|line| field(line, figure).parse::<f64>().is_ok_and(|one| one > 0.0)));
    }
    assert!(
        field(1, "speed_up").is_empty() && field(2, "speed_up").parse::<f64>().is_ok(),
        "{csv}"
    );

    std::fs::write(&file, "{\"prompt\": \"a\"}\n{\"promt\": \"b\"}\n").expect("written");
    let (code, err) = words(&bench(&alone(), &["--prompts", &name]));
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("own.jsonl: line 2: expected {\"prompt\"") && err.contains("found neither"),
        "{err}"
    );
}
