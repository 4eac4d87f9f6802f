//! `paceline status`: one snapshot from the supervisor's socket, as a table or as one JSON object.

mod penalties;
mod routing;

use std::path::Path;

use paceline_client::channel::{ANSWER_TIMEOUT, answered, operations};
use paceline_client::print::{bytes, indented, process_model, refusal, share};
use paceline_client::{Failure, Screen, program};
use paceline_process::config::Config;
use paceline_process::{Loaded, RuntimeDir};
use paceline_proto::convert::service::{LinkReport, RefusedDrafter, ServedModel, ServiceStatus};
use paceline_proto::v1::{ImageLimits, KvReduction, ProcessState, StatusRequest};
use serde_json::json;

use crate::args::ShowArgs;

/// Runs the command.
///
/// # Errors
/// No supervisor answers, or the configuration cannot be used.
pub async fn run(args: &ShowArgs, screen: &mut Screen) -> Result<(), Failure> {
    let config = args.config.config.as_deref();
    let status = program::show_object(ask(config).await, args.json, screen)?;
    if args.json {
        return screen.text(&format!("{}\n", json!(status)));
    }
    let Loaded { config, .. } = Loaded::find(config)?;
    let logs = format!("logs in {}\n", RuntimeDir::locate(&config)?.path().display());
    let model = status.target.model.as_ref();
    let penalties = model.map(|model| penalties::line(Path::new(model))).unwrap_or_default();
    let drafts = long_drafts(&config, &status);
    screen.text(&format!("{}{drafts}{penalties}{logs}", table(&status)))
}

/// Asks the supervisor.
///
/// # Errors
/// None answers, or the configuration cannot be used.
pub async fn ask(config: Option<&Path>) -> Result<ServiceStatus, Failure> {
    let (mut client, place) = operations(config)?;
    let answer = answered(client.status(StatusRequest {}), ANSWER_TIMEOUT, &place).await?;
    Ok(answer.into())
}

/// The limits of images in words.
fn limits_words(limits: &ImageLimits) -> String {
    let ImageLimits { max_images, max_pixels, read_pixels, max_tokens } = limits;
    format!(
        "at most {max_images} a request of {max_pixels} pixels each, read as at most {read_pixels} pixels or {max_tokens} tokens"
    )
}

/// The table for people.
pub fn table(status: &ServiceStatus) -> String {
    let head = ["PROCESS", "STATE", "PID", "RESTARTS", "UP", "MODEL"].map(str::to_owned);
    let mut rows = vec![head];
    let mut reasons = String::new();
    for (name, process) in status.processes() {
        let alive = |text: String| if process.pid.is_some() { text } else { "-".into() };
        rows.push([
            name.to_owned(),
            match process.state {
                ProcessState::Loading => {
                    format!("loading {}", share(process.loaded_bytes, process.weight_bytes))
                }
                state => state.word(),
            },
            alive(process.pid.unwrap_or_default().to_string()),
            process.restarts.to_string(),
            alive(uptime(process.uptime_s)),
            process_model(process),
        ]);
        if let Some(reason) = &process.reason {
            reasons.push_str(&format!("{name}: {}\n", indented(reason)));
        }
    }
    for refused in other_refusals(status) {
        reasons.push_str(&format!("{}\n", refusal(refused)));
    }
    let ServiceStatus { kv, requests, link, .. } = status;
    let figures = format!(
        "requests: {} active, {} queued; KV: {} of {} held ({:.0} %), {} for prefixes; link: {}{}\n",
        requests.active,
        requests.queued,
        bytes(kv.held_bytes),
        bytes(kv.budget_bytes),
        kv.pressure * 100.0,
        bytes(kv.prefix_bytes),
        link.state,
        speculated(link),
    );
    if let Some(KvReduction::RebootWhileBusy) = kv.reduction {
        reasons.push_str(REDUCED);
    }
    if let Some(reason) = &link.reason
        && link.state != "up"
    {
        reasons.push_str(&format!("link: {reason}\n"));
    }
    let routing = routing::text(&status.routing, &status.memory);
    [aligned(&rows), figures, of_model(status), routing, reasons].concat()
}

/// The refused drafters but for the present one, whose reason is that of its process.
pub fn other_refusals(status: &ServiceStatus) -> impl Iterator<Item = &RefusedDrafter> {
    let present = status.drafter.model.as_ref();
    status.refused_drafters.iter().filter(move |refused| Some(&refused.model) != present)
}

/// Lines about the model.
fn of_model(status: &ServiceStatus) -> String {
    let products = status.model.as_ref().map(products);
    images(status) + tool_calls(status) + lanes(status) + &products.unwrap_or_default()
}

/// A line about images, once the model is known.
fn images(status: &ServiceStatus) -> String {
    let Some(model) = &status.model else { return String::new() };
    match (&model.image_limits, model.vision) {
        (_, false) => "images: none, the model is served as text alone\n".to_owned(),
        (None, true) => "images: served\n".to_owned(),
        (Some(limits), true) => format!("images: {}\n", limits_words(limits)),
    }
}

/// A line for a model whose tool calls are not read.
fn tool_calls(status: &ServiceStatus) -> &'static str {
    match &status.model {
        Some(model) if model.unread_tool_calls => {
            "tool calls: not read, because the format of this model is not known; a call arrives as text\n"
        }
        _ => "",
    }
}

/// A line where lanes are exact.
fn lanes(status: &ServiceStatus) -> &'static str {
    match &status.model {
        Some(model) if model.exact_lanes => {
            "lanes: exact; a row alone is computed by the kernels of blocks\n"
        }
        _ => "",
    }
}

/// A line about products by quantized weights.
fn products(model: &ServedModel) -> String {
    format!("products: {}\n", products_words(model))
}

/// The kind of products by quantized weights and the instruction set of their kernels, in words.
pub fn products_words(model: &ServedModel) -> String {
    let kind = model.products.word();
    match &model.instructions {
        None => kind,
        Some(instructions) => format!("{kind}, kernels for {instructions}"),
    }
}

/// Line of a KV budget that is reduced.
const REDUCED: &str = "kv: 80 % of the budget is used, because the machine went down while the target was busy; after an ordinary stop the next start uses all of it\n";

/// A line if the policy lets the drafter draft for longer contexts than it was trained with.
fn long_drafts(config: &Config, status: &ServiceStatus) -> String {
    let mut settings = status.routing.policy.settings.iter();
    let setting = settings.find(|setting| setting.key == "routing.max_context");
    let max_context = setting.and_then(|setting| setting.value.parse().ok());
    let warning = max_context.and_then(|tokens| config.longer_than_trained(tokens));
    warning.map(|warning| format!("warning: {warning}\n")).unwrap_or_default()
}

/// Text about speculation, empty without a cycle.
fn speculated(link: &LinkReport) -> String {
    let Some(tokens) = link.speculation().tokens_per_cycle() else { return String::new() };
    let late = if link.late == 0 { String::new() } else { format!(", {} late", link.late) };
    format!(
        " ({tokens:.2} tokens per cycle over {} cycles, {} of {} drafted accepted{late}, {})",
        link.cycles,
        link.accepted,
        link.drafted,
        bytes(link.bytes.unwrap_or_default()),
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
    use paceline_proto::convert::service::{PolicyReport, RoutingReport};
    use paceline_proto::v1::{
        KvStatus, LinkStatus, ModelStatus, PolicySetting, ProcessStatus, Products, Speculation,
        StatusResponse,
    };
    use serde_json::Value;

    fn snapshot() -> ServiceStatus {
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
        let status = StatusResponse {
            gateway: Some(gateway),
            target: Some(target),
            drafter: Some(drafter),
            term: 4,
            ..StatusResponse::default()
        };
        status.into()
    }

    #[test]
    fn the_object_has_the_contracts_keys() {
        let object = json!(snapshot());
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
            "active queued speculative unstarted most_active queued_tokens unstarted_tokens idle_s"
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
        let seeing = ServiceStatus { model: Some(seeing.into()), ..snapshot() };
        let line = "images: at most 8 a request of 40 pixels each, read as at most 20 pixels or 5 tokens\n";
        assert!(table(&seeing).contains(line), "{}", table(&seeing));
        assert_eq!(json!(seeing)["model"]["image_limits"]["read_pixels"], 20);
        assert!(!table(&seeing).contains("tool calls"), "{}", table(&seeing));
        let unread = ModelStatus { unread_tool_calls: true, ..model.clone() };
        let unread = ServiceStatus { model: Some(unread.into()), ..snapshot() };
        assert!(table(&unread).contains("tool calls: not read, "), "{}", table(&unread));
        assert_eq!(json!(unread)["model"]["unread_tool_calls"], true);
        let exact = ServiceStatus { model: Some(model.into()), ..snapshot() };
        assert!(table(&exact).contains("lanes: exact; "), "{}", table(&exact));
        assert!(!table(&snapshot()).contains("lanes: "));
        assert!(table(&exact).contains("images: none"), "{}", table(&exact));
        assert!(
            table(&exact).contains("products: integer, kernels for AVX2\n"),
            "{}",
            table(&exact)
        );
        let known = json!(exact);
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
        let status = ServiceStatus { kv: kv.into(), ..snapshot() };
        assert_eq!(json!(status)["kv"]["reduced_reason"], "reboot_while_busy");
        assert!(table(&status).ends_with(REDUCED), "{}", table(&status));
        assert!(!table(&snapshot()).contains("80 %"));
    }

    #[test]
    fn speculation_totals_are_shown_once_there_are_some() {
        let speculation = Some(Speculation { cycles: 10, drafted: 150, accepted: 42 });
        let link = LinkStatus {
            state: "up".into(),
            generation: 7,
            speculation,
            late: 2,
            bytes: 2_048,
            ..Default::default()
        };
        let status = ServiceStatus { link: link.into(), ..snapshot() };
        let line = "link: up (5.20 tokens per cycle over 10 cycles, 42 of 150 drafted accepted, 2 late, 2.0 KiB)\n";
        assert!(table(&status).contains(line), "{}", table(&status));
        let object = json!(status);
        assert_eq!(
            (&object["link"]["cycles"], &object["link"]["accepted"]),
            (&json!(10), &json!(42))
        );
        let refused = LinkStatus {
            state: "refused".into(),
            reason: "other tokenizer".into(),
            ..Default::default()
        };
        let text = table(&ServiceStatus { link: refused.into(), ..snapshot() });
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
            let policy = PolicyReport { epoch: 0, settings: vec![setting] };
            let routing = RoutingReport { policy, ..Default::default() };
            long_drafts(&config, &ServiceStatus { routing, ..snapshot() })
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
        let status = ServiceStatus {
            drafter: drafter.into(),
            refused_drafters: vec![refused("/d/a", "other sizes"), refused("/d/b", "no files")],
            ..snapshot()
        };
        let expected = "drafter: no files\ndrafter /d/a was refused: other sizes\n";
        assert!(table(&status).ends_with(expected), "{}", table(&status));
        let expected = json!([
            {"model": "/d/a", "reason": "other sizes"},
            {"model": "/d/b", "reason": "no files"},
        ]);
        assert_eq!(json!(status)["refused_drafters"], expected);
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
