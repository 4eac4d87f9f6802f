//! The description of a model in lines for people.

use std::fmt::Write as _;

use paceline_client::print::bytes;
use serde_json::Value;

/// Places of a format that are shown.
const MAX_PATHS: usize = 8;

/// A line about the chat template. Empty if its engine has all that it calls.
fn template_line(object: &Value) -> String {
    let lacks = object["template"]["lacks"].as_array().map_or(&[][..], Vec::as_slice);
    let lacks: Vec<&str> = lacks.iter().filter_map(Value::as_str).collect();
    if lacks.is_empty() {
        return String::new();
    }
    let lacks = lacks.join(", ");
    format!(
        "template    calls what is not served: {lacks}; conversations that reach it are refused\n"
    )
}

/// A line about images. Empty if nothing is known of them.
fn images_line(object: &Value) -> String {
    let limits = &object["images"];
    match (object["model"]["vision"].as_bool(), limits.is_object()) {
        (None, _) => String::new(),
        (Some(false), _) => "images      none, text alone\n".to_owned(),
        (Some(true), false) => "images      read; their limits are not known\n".to_owned(),
        (Some(true), true) => format!(
            "images      at most {} a request of {} pixels each, read as at most {} pixels or {} tokens\n",
            limits["max_images"], limits["max_pixels"], limits["read_pixels"], limits["max_tokens"],
        ),
    }
}

/// What an operator should know of the checkpoint, a line each.
fn notes_lines(model: &Value) -> String {
    let notes = model["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    notes.map(|note| format!("note        {note}\n")).collect()
}

/// The object in lines for people.
pub(super) fn text(object: &Value) -> String {
    let mut text = String::new();
    let [model, kv, machine, drafter] =
        ["model", "kv", "machine", "drafter"].map(|key| &object[key]);
    let size = |value: &Value| value.as_u64().map_or_else(|| "unknown".to_owned(), bytes);
    let word = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let device = word(&machine["device"]);
    let vision = if model["vision"] == true { ", with a vision tower" } else { "" };
    text.push_str(&place_line(object));
    let _ = writeln!(
        text,
        "family      {}, {} parameters, {} layers of width {}, vocabulary {}{vision}",
        word(&model["family"]),
        count(&model["parameters"]),
        model["layers"],
        model["hidden_size"],
        model["vocabulary"],
    );
    let _ = writeln!(
        text,
        "weights     {} on disk, {} in memory ({device})",
        size(&model["disk_bytes"]),
        size(&model["memory_bytes"]),
    );
    for format in object["formats"].as_array().into_iter().flatten() {
        text.push_str(&format_lines(format));
    }
    text.push_str(&products_line(machine));
    let _ = writeln!(
        text,
        "context     {} positions, {} of KV each, {}{} for the longest sequence",
        model["context"],
        size(&kv["position_bytes"]),
        beside_positions(kv),
        size(&kv["longest_sequence_bytes"]),
    );
    text.push_str(&[images_line(object), template_line(object), notes_lines(model)].concat());
    let named = &machine["named"];
    let whose = match named["name"].as_str() {
        Some(name) => format!("{name}: {} can be used", size(&machine["usable_bytes"])),
        None => format!("{} can be used now", size(&machine["usable_bytes"])),
    };
    let _ = writeln!(
        text,
        "machine     {whose}; KV budget {}: {} positions, or {} of the longest sequences",
        size(&kv["budget_bytes"]),
        kv["budget_positions"],
        kv["budget_longest_sequences"],
    );
    text.push_str(&[sequences_line(kv), longest_line(kv), speed_line(named)].concat());
    let _ = writeln!(text, "verdict     {}", verdict(machine));
    if !drafter.is_null() {
        let what = match drafter["kind"].as_str() {
            Some(kind) => format!("{kind}, {} in memory, ", size(&drafter["memory_bytes"])),
            None => String::new(),
        };
        let _ = writeln!(text, "drafter     {what}{}", verdict(drafter));
    }
    text
}

/// Where the model is: on this machine, or on a hub with the files that are to be fetched.
fn place_line(object: &Value) -> String {
    let (model, fetch) = (&object["model"], &object["fetch"]);
    let name = model["name"].as_str().unwrap_or("?");
    if fetch.is_null() {
        return format!("{name} at {}\n", model["path"].as_str().unwrap_or("?"));
    }
    let size = |key: &str| fetch[key].as_u64().map_or_else(|| "unknown".to_owned(), bytes);
    format!(
        "{name} is not on this machine\nfetch       {} in {} files from {}, {} free\n",
        size("bytes"),
        fetch["files"],
        fetch["hub"].as_str().unwrap_or("?"),
        size("free_bytes"),
    )
}

/// The kind of products by quantized weights, and the instruction set of the CPU's kernels.
fn products_line(machine: &Value) -> String {
    let kind = machine["products"].as_str().unwrap_or("?");
    let kernels = machine["instructions"].as_str();
    let kernels = kernels.map_or_else(String::new, |set| format!(", kernels for {set}"));
    format!("products    {kind}{kernels}\n")
}

/// The longest sequence that fits the budget. Empty if none does.
fn longest_line(kv: &Value) -> String {
    match kv["budget_context"].as_u64() {
        None | Some(0) => String::new(),
        Some(longest) => {
            format!("longest     {longest} positions of one sequence fit the KV budget\n")
        }
    }
}

/// Most tokens a second that the memory of a machine that was named allows. Empty for this machine.
fn speed_line(named: &Value) -> String {
    let (Some(speed), Some(bandwidth)) =
        (named["most_tokens_s"].as_f64(), named["bandwidth_bytes_s"].as_f64())
    else {
        return String::new();
    };
    format!(
        "speed       at most {speed:.0} tokens/s of one stream without a drafter: each reads {} at {:.0} GB/s\n",
        named["token_bytes"].as_u64().map_or_else(|| "unknown".to_owned(), bytes),
        bandwidth / 1e9,
    )
}

/// Text about bytes of a sequence that do not grow with it: states of recurrent layers, and layers
/// that keep their last positions alone. Empty for a model without such.
fn beside_positions(kv: &Value) -> String {
    let part = |key: &str, words: &str| match kv[key].as_u64() {
        None | Some(0) => String::new(),
        Some(count) => format!("{} of {words} for each sequence, ", bytes(count)),
    };
    part("state_bytes", "states") + &part("window_bytes", "sliding windows at most")
}

/// How many sequences of some lengths fit the KV budget.
fn sequences_line(kv: &Value) -> String {
    let lengths = kv["budget_sequences"].as_array().into_iter().flatten();
    let words: Vec<String> = lengths
        .map(|one| format!("{} of {} positions", one["sequences"], one["positions"]))
        .collect();
    match words.is_empty() {
        true => String::new(),
        false => format!("sequences   {} fit the KV budget\n", words.join(", or ")),
    }
}

/// Whether a part of the description fits here, with the reason if it does not.
pub fn verdict(part: &Value) -> String {
    match (part["fits"] == true, part["reason"].as_str()) {
        (true, _) => "fits".to_owned(),
        (false, reason) => format!("does not fit: {}", reason.unwrap_or("no reason is known")),
    }
}

/// A format and where it is used. The default has no places: it is everywhere else.
fn format_lines(format: &Value) -> String {
    let (tensors, plural) = (&format["tensors"], if format["tensors"] == 1 { "" } else { "s" });
    let (numbers, name) = (count(&format["parameters"]), format["format"].as_str().unwrap_or("?"));
    let mut text = format!("  {:<10}{tensors} tensor{plural}, {numbers} parameters, {name}\n", "");
    if format["default"] == true {
        return text;
    }
    let paths = format["paths"].as_object();
    for (path, times) in paths.into_iter().flatten().take(MAX_PATHS) {
        let _ = writeln!(text, "  {:<12}{path} ({times})", "");
    }
    if let Some(more) = paths.and_then(|paths| paths.len().checked_sub(MAX_PATHS + 1)) {
        let _ = writeln!(text, "  {:<12}and {} more", "", more + 1);
    }
    text
}

/// A number of parameters in a few digits.
fn count(value: &Value) -> String {
    match value.as_u64().unwrap_or(0) {
        number @ 0..10_000 => number.to_string(),
        number @ 10_000..1_000_000 => format!("{:.0} thousand", number as f64 / 1e3),
        number @ 1_000_000..1_000_000_000 => format!("{:.1} million", number as f64 / 1e6),
        number => format!("{:.2} billion", number as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use paceline_client::failure::REFUSED;
    use serde_json::json;

    use super::super::served_here;
    use super::*;

    #[test]
    fn the_lines_have_what_the_object_says() {
        let object = json!({
            "model": {"name": "org/name", "path": "/m", "family": "qwen3", "parameters": 8_190_735_360u64,
                "disk_bytes": 4u64 << 30, "memory_bytes": 5u64 << 30, "layers": 36, "hidden_size": 4096,
                "vocabulary": 151936, "context": 40960, "vision": false, "notes": ["the head counts"]},
            "formats": [
                {"format": "affine, 4 bits, groups of 64", "tensors": 252, "parameters": 8_000_000_000u64, "default": true, "paths": {"x": 252}},
                {"format": "bfloat16", "tensors": 145, "parameters": 300_000, "default": false, "paths": {"model.layers.*.norm.weight": 36}}],
            "kv": {"position_bytes": 147456, "longest_sequence_bytes": 6u64 << 30, "budget_bytes": 1 << 30,
                "budget_positions": 7281, "budget_longest_sequences": 0, "state_bytes": 150u64 << 20, "window_bytes": 1u64 << 30,
                "budget_sequences": [{"positions": 256, "sequences": 5}, {"positions": 4096, "sequences": 1}]},
            "machine": {"device": "cpu", "products": "integer", "instructions": "AVX2", "usable_bytes": 3u64 << 30, "fits": false, "reason": "too large"},
            "drafter": {"path": "/d", "kind": "dflash", "memory_bytes": 1 << 20, "fits": true, "reason": null},
        });
        assert_eq!(served_here(&object).expect_err("it does not fit").exit, REFUSED);
        let text = text(&object);
        for line in [
            "org/name at /m",
            "qwen3, 8.19 billion parameters, 36 layers of width 4096, vocabulary 151936",
            "4.0 GiB on disk, 5.0 GiB in memory (cpu)",
            "252 tensors, 8.00 billion parameters, affine, 4 bits, groups of 64\n",
            "145 tensors, 300 thousand parameters, bfloat16\n",
            "model.layers.*.norm.weight (36)",
            "products    integer, kernels for AVX2\n",
            "40960 positions, 144.0 KiB of KV each, 150.0 MiB of states for each sequence, 1.0 GiB of sliding windows at most for each sequence, 6.0 GiB for the longest",
            "sequences   5 of 256 positions, or 1 of 4096 positions fit the KV budget",
            "3.0 GiB can be used now; KV budget 1.0 GiB: 7281 positions, or 0 of",
            "images      none, text alone\n",
            "note        the head counts\n",
            "verdict     does not fit: too large",
            "drafter     dflash, 1.0 MiB in memory, fits",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        assert!(!text.contains("x (252)"), "the default is everywhere else");
        assert!(!text.contains("longest     ") && !text.contains("speed"), "{text}");
    }

    #[test]
    fn a_model_that_reads_images_has_a_line_with_their_limits() {
        let mut object = json!({"model": {"vision": true}});
        assert!(images_line(&object).contains("limits are not known"));
        object["images"] =
            json!({"max_images": 8, "max_pixels": 40, "read_pixels": 20, "max_tokens": 5});
        let expected = "images      at most 8 a request of 40 pixels each, read as at most 20 pixels or 5 tokens\n";
        assert_eq!(images_line(&object), expected);
        assert_eq!(images_line(&json!({"model": {}})), "");
    }

    #[test]
    fn a_machine_that_was_named_has_its_longest_context_and_a_bound_of_speed() {
        let object = json!({
            "model": {}, "formats": [], "drafter": null,
            "kv": {"budget_bytes": 900u64 << 20, "budget_positions": 6_400,
                "budget_longest_sequences": 0, "budget_context": 6_144},
            "machine": {"device": "gpu", "usable_bytes": 16u64 << 30, "fits": true, "reason": null,
                "named": {"name": "M4 Pro 24 GB", "memory_bytes": 24u64 << 30, "bandwidth_bytes_s": 2.73e11,
                    "gpu_generation": 16, "token_bytes": 14u64 << 30, "most_tokens_s": 18.16}},
        });
        served_here(&object).expect("it fits");
        let text = text(&object);
        for line in [
            "machine     M4 Pro 24 GB: 16.0 GiB can be used; KV budget 900.0 MiB: 6400 positions",
            "longest     6144 positions of one sequence fit the KV budget\n",
            "speed       at most 18 tokens/s of one stream without a drafter: each reads 14.0 GiB at 273 GB/s\n",
            "verdict     fits",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
