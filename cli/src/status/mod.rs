//! `paceline status`: one snapshot from the supervisor's socket, as a table or as one JSON object.

mod penalties;
mod routing;

use std::path::Path;

use paceline_client::channel::{ANSWER_TIMEOUT, answered, operations};
use paceline_client::print::{bytes, share};
use paceline_client::{Failure, Screen, program};
use paceline_process::config::Config;
use paceline_process::{Loaded, RuntimeDir};
use paceline_proto::v1::{
    ImageLimits, KvReduction, KvStatus, LinkStatus, ModelStatus, ProcessStatus, RefusedDrafter,
    StatusRequest, StatusResponse,
};
use serde_json::{Value, json};

use crate::args::ShowArgs;

/// Runs the command.
///
/// # Errors
/// No supervisor answers, or the configuration cannot be used.
pub async fn run(args: &ShowArgs, screen: &mut Screen) -> Result<(), Failure> {
    let config = args.config.config.as_deref();
    let status = program::show_object(ask(config).await, args.json, screen)?;
    if args.json {
        return screen.text(&format!("{}\n", object(&status)));
    }
    let Loaded { config, .. } = Loaded::find(config)?;
    let logs = format!("logs in {}\n", RuntimeDir::locate(&config)?.path().display());
    let target = status.target.as_ref().filter(|target| !target.model.is_empty());
    let penalties = target.map(|target| penalties::line(Path::new(&target.model)));
    let penalties = penalties.unwrap_or_default();
    let drafts = long_drafts(&config, &status);
    screen.text(&format!("{}{drafts}{penalties}{logs}", table(&status)))
}

/// Asks the supervisor.
///
/// # Errors
/// None answers, or the configuration cannot be used.
pub async fn ask(config: Option<&Path>) -> Result<StatusResponse, Failure> {
    let (mut client, place) = operations(config)?;
    answered(client.status(StatusRequest {}), ANSWER_TIMEOUT, &place).await
}

/// JSON object of the status for `--json`. An absent value is null, so that no program takes "" for
/// a directory or 0 for a process.
pub fn object(status: &StatusResponse) -> Value {
    let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let process = |process: &Option<ProcessStatus>| {
        let process = process.clone().unwrap_or_default();
        json!({
            "state": process.state().word(),
            "pid": (process.pid != 0).then_some(process.pid),
            "epoch": process.epoch,
            "restarts": process.restarts,
            "uptime_s": process.uptime_s,
            "model": some(&process.model),
            "weights_loaded_at": some(&process.weights_loaded_at),
            "weight_bytes": process.weight_bytes,
            "loaded_bytes": process.loaded_bytes,
            "reason": some(&process.reason),
        })
    };
    let kv = status.kv.unwrap_or_default();
    let requests = status.requests.unwrap_or_default();
    let link = status.link.clone().unwrap_or_default();
    let speculation = link.speculation.unwrap_or_default();
    json!({
        "gateway": process(&status.gateway),
        "supervisor": process(&status.supervisor),
        "target": process(&status.target),
        "drafter": process(&status.drafter),
        "kv": {
            "budget_bytes": kv.budget_bytes, "held_bytes": kv.held_bytes,
            "prefix_bytes": kv.prefix_bytes, "pressure": kv.pressure,
            "reduced_reason": reduced(&kv).map(KvReduction::word),
        },
        "requests": {
            "active": requests.active, "queued": requests.queued, "speculative": requests.speculative,
            "unstarted": requests.unstarted, "most_active": requests.most_active,
            "queued_tokens": requests.queued_tokens, "unstarted_tokens": requests.unstarted_tokens,
        },
        "link": {
            "state": link_word(&link), "reason": some(&link.reason), "generation": link.generation,
            "cycles": speculation.cycles, "drafted": speculation.drafted, "accepted": speculation.accepted,
            "late": link.late, "bytes": link.bytes,
        },
        "routing": routing::object(&status.routing.clone().unwrap_or_default()),
        "memory": routing::memory_object(&status.memory.unwrap_or_default()),
        "model": status.model.as_ref().map(|model| json!({
            "name": model.name, "context_length": model.context_length, "vocab_size": model.vocab_size,
            "position_bytes": model.position_bytes, "exact_lanes": model.exact_lanes,
            "logit_unit": model.logit_unit, "products": model.products().word(),
            "instructions": some(&model.instructions), "vision": model.vision,
            "image_limits": model.image_limits.map(limits_object),
            "unread_tool_calls": model.unread_tool_calls,
        })),
        "refused_drafters": status.refused_drafters.iter().map(|refused| json!({
            "model": refused.model, "reason": refused.reason,
        })).collect::<Vec<_>>(),
        "term": status.term,
    })
}

/// JSON object of the limits of images.
fn limits_object(limits: ImageLimits) -> Value {
    let ImageLimits { max_images, max_pixels, read_pixels, max_tokens } = limits;
    json!({
        "max_images": max_images, "max_pixels": max_pixels,
        "read_pixels": read_pixels, "max_tokens": max_tokens,
    })
}

/// The limits of images in words.
fn limits_words(limits: &ImageLimits) -> String {
    let ImageLimits { max_images, max_pixels, read_pixels, max_tokens } = limits;
    format!(
        "at most {max_images} a request of {max_pixels} pixels each, read as at most {read_pixels} pixels or {max_tokens} tokens"
    )
}

/// The line of a refused drafter.
pub fn refusal(refused: &RefusedDrafter) -> String {
    let RefusedDrafter { model, reason } = refused;
    format!("drafter {model} was refused: {}", reason.trim_end().replace('\n', "\n    "))
}

/// The processes with their names. Those that are not known are empty.
pub fn processes(status: &StatusResponse) -> [(&'static str, ProcessStatus); 4] {
    [
        ("gateway", &status.gateway),
        ("supervisor", &status.supervisor),
        ("target", &status.target),
        ("drafter", &status.drafter),
    ]
    .map(|(name, process)| (name, process.clone().unwrap_or_default()))
}

/// The table for people.
pub fn table(status: &StatusResponse) -> String {
    let head = ["PROCESS", "STATE", "PID", "RESTARTS", "UP", "MODEL"].map(str::to_owned);
    let mut rows = vec![head];
    let mut reasons = String::new();
    for (name, process) in processes(status) {
        let state = process.state().word();
        let alive = process.pid != 0;
        rows.push([
            name.to_owned(),
            if state == "loading" { format!("loading {}", share(&process)) } else { state },
            if alive { process.pid.to_string() } else { "-".into() },
            process.restarts.to_string(),
            if alive { uptime(process.uptime_s) } else { "-".into() },
            model(&process),
        ]);
        if !process.reason.is_empty() {
            reasons.push_str(&format!(
                "{name}: {}\n",
                process.reason.trim_end().replace('\n', "\n    ")
            ));
        }
    }
    // The reason of the present drafter stands above.
    let present = status.drafter.as_ref().map_or("", |drafter| &drafter.model);
    for refused in status.refused_drafters.iter().filter(|refused| refused.model != present) {
        reasons.push_str(&format!("{}\n", refusal(refused)));
    }
    let kv = status.kv.unwrap_or_default();
    let requests = status.requests.unwrap_or_default();
    let link = status.link.clone().unwrap_or_default();
    let figures = format!(
        "requests: {} active, {} queued; KV: {} of {} held ({:.0} %), {} for prefixes; link: {}{}\n",
        requests.active,
        requests.queued,
        bytes(kv.held_bytes),
        bytes(kv.budget_bytes),
        kv.pressure * 100.0,
        bytes(kv.prefix_bytes),
        link_word(&link),
        speculated(&link),
    );
    if let Some(KvReduction::RebootWhileBusy) = reduced(&kv) {
        reasons.push_str(REDUCED);
    }
    if !link.reason.is_empty() && link.state != "up" {
        reasons.push_str(&format!("link: {}\n", link.reason));
    }
    let routing = routing::text(
        &status.routing.clone().unwrap_or_default(),
        &status.memory.unwrap_or_default(),
    );
    [aligned(&rows), figures, of_model(status), routing, reasons].concat()
}

/// Lines about the model.
fn of_model(status: &StatusResponse) -> String {
    let products = status.model.as_ref().map(products);
    images(status) + tool_calls(status) + lanes(status) + &products.unwrap_or_default()
}

/// A line about images, once the model is known.
fn images(status: &StatusResponse) -> String {
    let Some(model) = &status.model else { return String::new() };
    match (&model.image_limits, model.vision) {
        (_, false) => "images: none, the model is served as text alone\n".to_owned(),
        (None, true) => "images: served\n".to_owned(),
        (Some(limits), true) => format!("images: {}\n", limits_words(limits)),
    }
}

/// A line for a model whose tool calls are not read.
fn tool_calls(status: &StatusResponse) -> &'static str {
    match &status.model {
        Some(model) if model.unread_tool_calls => {
            "tool calls: not read, because the format of this model is not known; a call arrives as text\n"
        }
        _ => "",
    }
}

/// A line where lanes are exact.
fn lanes(status: &StatusResponse) -> &'static str {
    match &status.model {
        Some(model) if model.exact_lanes => {
            "lanes: exact; a row alone is computed by the kernels of blocks\n"
        }
        _ => "",
    }
}

/// A line about products by quantized weights.
fn products(model: &ModelStatus) -> String {
    format!("products: {}\n", products_words(model))
}

/// The kind of products by quantized weights and the instruction set of their kernels, in words.
pub fn products_words(model: &ModelStatus) -> String {
    let kind = model.products().word();
    match model.instructions.as_str() {
        "" => kind,
        instructions => format!("{kind}, kernels for {instructions}"),
    }
}

/// Line of a KV budget that is reduced.
const REDUCED: &str = "kv: 80 % of the budget is used, because the machine went down while the target was busy; after an ordinary stop the next start uses all of it\n";

/// Why the KV budget is reduced; `None`: it is not.
fn reduced(kv: &KvStatus) -> Option<KvReduction> {
    Some(kv.reduction()).filter(|reduction| *reduction != KvReduction::Unspecified)
}

/// A line if the policy lets the drafter draft for longer contexts than it was trained with.
fn long_drafts(config: &Config, status: &StatusResponse) -> String {
    let policy = status.routing.as_ref().map(|routing| routing.policy.as_slice());
    let mut settings = policy.unwrap_or_default().iter();
    let setting = settings.find(|setting| setting.key == "routing.max_context");
    let max_context = setting.and_then(|setting| setting.value.parse().ok());
    let warning = max_context.and_then(|tokens| config.longer_than_trained(tokens));
    warning.map(|warning| format!("warning: {warning}\n")).unwrap_or_default()
}

fn link_word(link: &LinkStatus) -> &str {
    if link.state.is_empty() { "absent" } else { &link.state }
}

/// Text about speculation, empty without a cycle. A cycle gives its accepted tokens and one that is
/// the target's own.
fn speculated(link: &LinkStatus) -> String {
    let totals = link.speculation.unwrap_or_default();
    if totals.cycles == 0 {
        return String::new();
    }
    let (cycles, accepted) = (totals.cycles as f64, totals.accepted as f64);
    let late = if link.late == 0 { String::new() } else { format!(", {} late", link.late) };
    format!(
        " ({:.2} tokens per cycle over {} cycles, {} of {} drafted accepted{late}, {})",
        accepted / cycles + 1.0,
        totals.cycles,
        totals.accepted,
        totals.drafted,
        bytes(link.bytes),
    )
}

/// Rows with columns of one width each.
pub fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }
    let line = |row: &[String; N]| {
        let cells: Vec<_> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// The process's model for people, with the size of its weights.
pub fn model(process: &ProcessStatus) -> String {
    match (process.model.is_empty(), process.weight_bytes) {
        (true, _) => String::new(),
        (false, 0) => process.model.clone(),
        (false, weight) => format!("{} ({})", process.model, bytes(weight)),
    }
}

/// A duration for people.
pub fn uptime(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_process::config::DrafterModels;
    use paceline_proto::v1::{PolicySetting, ProcessState, Products, RoutingStatus};

    fn snapshot() -> StatusResponse {
        let target = ProcessStatus {
            state: ProcessState::BackingOff.into(),
            epoch: 3,
            restarts: 2,
            model: "/models/m".into(),
            weight_bytes: 3 << 20,
            reason: "the target ended by signal 9\nlast line".into(),
            ..ProcessStatus::default()
        };
        let gateway = ProcessStatus {
            state: ProcessState::Ready.into(),
            pid: 12,
            epoch: 1,
            uptime_s: 61.5,
            ..ProcessStatus::default()
        };
        let drafter =
            ProcessStatus { state: ProcessState::Absent.into(), ..ProcessStatus::default() };
        StatusResponse {
            gateway: Some(gateway),
            target: Some(target),
            drafter: Some(drafter),
            term: 4,
            ..StatusResponse::default()
        }
    }

    #[test]
    fn the_object_has_the_contracts_keys() {
        let object = object(&snapshot());
        let keys = |value: &Value| {
            value.as_object().expect("an object").keys().cloned().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            keys(&object),
            "gateway supervisor target drafter kv requests link routing memory model refused_drafters term"
        );
        for process in ["gateway", "supervisor", "target", "drafter"] {
            let expected = "state pid epoch restarts uptime_s model weights_loaded_at weight_bytes loaded_bytes reason";
            assert_eq!(keys(&object[process]), expected);
        }
        assert_eq!(
            keys(&object["kv"]),
            "budget_bytes held_bytes prefix_bytes pressure reduced_reason"
        );
        assert_eq!(object["kv"]["reduced_reason"], Value::Null);
        assert_eq!(
            keys(&object["requests"]),
            "active queued speculative unstarted most_active queued_tokens unstarted_tokens"
        );
        assert_eq!(keys(&object["routing"]), "policy routes by_sequences by_context step_costs");
        assert_eq!(
            keys(&object["memory"]),
            "budget_bytes target_bytes drafter_bytes cache_bytes available_bytes recommended_bytes"
        );
        assert_eq!(object["target"]["state"], "backing_off");
        assert_eq!(object["target"]["pid"], Value::Null);
        assert_eq!(object["gateway"]["pid"], 12);
        assert_eq!(object["gateway"]["reason"], Value::Null);
        assert_eq!(object["drafter"]["state"], "absent");
        assert_eq!(
            keys(&object["link"]),
            "state reason generation cycles drafted accepted late bytes"
        );
        assert_eq!(object["link"]["state"], "absent");
        assert_eq!(object["link"]["reason"], Value::Null);
        assert_eq!(object["supervisor"]["state"], "unspecified");
        assert_eq!(object["model"], Value::Null);
        let model = ModelStatus {
            name: "m".into(),
            context_length: 4_096,
            vocab_size: 10,
            position_bytes: 8_192,
            exact_lanes: true,
            logit_unit: 0.125,
            vision: false,
            image_limits: None,
            unread_tool_calls: false,
            products: Products::Integer.into(),
            instructions: "AVX2".into(),
        };
        let limits = ImageLimits { max_images: 8, max_pixels: 40, read_pixels: 20, max_tokens: 5 };
        let seeing = ModelStatus { vision: true, image_limits: Some(limits), ..model.clone() };
        let seeing = StatusResponse { model: Some(seeing), ..snapshot() };
        let line = "images: at most 8 a request of 40 pixels each, read as at most 20 pixels or 5 tokens\n";
        assert!(table(&seeing).contains(line), "{}", table(&seeing));
        assert_eq!(super::object(&seeing)["model"]["image_limits"]["read_pixels"], 20);
        assert!(!table(&seeing).contains("tool calls"), "{}", table(&seeing));
        let unread = ModelStatus { unread_tool_calls: true, ..model.clone() };
        let unread = StatusResponse { model: Some(unread), ..snapshot() };
        assert!(table(&unread).contains("tool calls: not read, "), "{}", table(&unread));
        assert_eq!(super::object(&unread)["model"]["unread_tool_calls"], true);
        let exact = StatusResponse { model: Some(model), ..snapshot() };
        assert!(table(&exact).contains("lanes: exact; "), "{}", table(&exact));
        assert!(!table(&snapshot()).contains("lanes: "));
        assert!(table(&exact).contains("images: none"), "{}", table(&exact));
        assert!(
            table(&exact).contains("products: integer, kernels for AVX2\n"),
            "{}",
            table(&exact)
        );
        let known = super::object(&exact);
        assert_eq!(known["model"]["products"], "integer");
        assert_eq!(known["model"]["instructions"], "AVX2");
        assert_eq!(
            keys(&known["model"]),
            "name context_length vocab_size position_bytes exact_lanes logit_unit products instructions vision image_limits unread_tool_calls"
        );
    }

    #[test]
    fn a_reduced_kv_budget_is_shown_with_its_reason() {
        let kv = KvStatus { reduction: KvReduction::RebootWhileBusy.into(), ..Default::default() };
        let status = StatusResponse { kv: Some(kv), ..snapshot() };
        assert_eq!(object(&status)["kv"]["reduced_reason"], "reboot_while_busy");
        assert!(table(&status).ends_with(REDUCED), "{}", table(&status));
        assert!(!table(&snapshot()).contains("80 %"));
    }

    #[test]
    fn speculation_totals_are_shown_once_there_are_some() {
        let speculation =
            Some(paceline_proto::v1::Speculation { cycles: 10, drafted: 150, accepted: 42 });
        let link = LinkStatus {
            state: "up".into(),
            generation: 7,
            speculation,
            late: 2,
            bytes: 2_048,
            ..Default::default()
        };
        let status = StatusResponse { link: Some(link), ..snapshot() };
        let line = "link: up (5.20 tokens per cycle over 10 cycles, 42 of 150 drafted accepted, 2 late, 2.0 KiB)\n";
        assert!(table(&status).contains(line), "{}", table(&status));
        let object = object(&status);
        assert_eq!(
            (&object["link"]["cycles"], &object["link"]["accepted"]),
            (&json!(10), &json!(42))
        );
        let refused = LinkStatus {
            state: "refused".into(),
            reason: "other tokenizer".into(),
            ..Default::default()
        };
        let text = table(&StatusResponse { link: Some(refused), ..snapshot() });
        assert!(
            text.contains("link: refused\n") && text.contains("link: other tokenizer\n"),
            "{text}"
        );
    }

    #[test]
    fn a_policy_above_the_length_that_the_drafter_was_trained_with_is_warned_of() {
        let dir = tempfile::tempdir().expect("a directory");
        let json = r#"{"architectures": ["DFlashDraftModel"], "max_position_embeddings": 40960}"#;
        std::fs::write(dir.path().join("config.json"), json).expect("written");
        let mut config = Config::default();
        config.drafter.model = DrafterModels::one(dir.path().display().to_string());
        let warned = |value: &str| {
            let setting = PolicySetting {
                key: "routing.max_context".into(),
                value: value.into(),
                source: "operator".into(),
            };
            let routing = RoutingStatus { policy: vec![setting], ..Default::default() };
            long_drafts(&config, &StatusResponse { routing: Some(routing), ..snapshot() })
        };
        assert_eq!((warned("auto"), warned("4096")), (String::new(), String::new()));
        let line = warned("8000");
        assert!(line.starts_with("warning: routing.max_context = 8000 is above 4096"), "{line}");
        assert!(line.ends_with('\n'));
    }

    #[test]
    fn refused_drafters_are_shown_with_their_reasons_below_the_table() {
        let refused = |model: &str, reason: &str| RefusedDrafter {
            model: model.into(),
            reason: reason.into(),
        };
        let drafter = ProcessStatus {
            state: ProcessState::Failed.into(),
            model: "/d/b".into(),
            reason: "no files".into(),
            ..ProcessStatus::default()
        };
        let status = StatusResponse {
            drafter: Some(drafter),
            refused_drafters: vec![refused("/d/a", "other sizes"), refused("/d/b", "no files")],
            ..snapshot()
        };
        let expected = "drafter: no files\ndrafter /d/a was refused: other sizes\n";
        assert!(table(&status).ends_with(expected), "{}", table(&status));
        let expected = json!([
            {"model": "/d/a", "reason": "other sizes"},
            {"model": "/d/b", "reason": "no files"},
        ]);
        assert_eq!(object(&status)["refused_drafters"], expected);
    }

    #[test]
    fn the_table_is_aligned_and_gives_reasons() {
        assert_eq!(
            table(&snapshot()),
            "\
PROCESS     STATE        PID  RESTARTS  UP     MODEL
gateway     ready        12   0         1 min
supervisor  unspecified  -    0         -
target      backing_off  -    2         -      /models/m (3.0 MiB)
drafter     absent       -    0         -
requests: 0 active, 0 queued; KV: 0 B of 0 B held (0 %), 0 B for prefixes; link: absent
target: the target ended by signal 9
    last line
"
        );
    }
}
