//! Questions about images, and what reference implementations make of them, from the golden files of
//! the parity tests.

use std::path::Path;

use paceline_proto::v1::ContentPart;
use paceline_tests::ask::{Ask, conversation};
use paceline_tests::images::{image, png, text, turn};
use serde_json::Value;

/// A question about images, and what the reference makes of it.
pub struct Case {
    pub question: String,
    /// Files of its images, in the order of the prompt.
    pub images: Vec<Vec<u8>>,
    /// Ids of the prompt, and those that follow it. Empty if the golden file has no answer.
    pub prompt: Vec<u32>,
    pub greedy: Vec<u32>,
}

/// Tokens of an answer of which the golden file has none.
const TOKENS: u32 = 24;

impl Case {
    /// The request of these files and the question.
    pub fn about(&self, images: &[Vec<u8>]) -> Ask {
        let images = images.iter().map(|file| image(file.clone()));
        let parts: Vec<ContentPart> = images.chain([text(&self.question)]).collect();
        conversation(vec![turn(parts)]).exactly(self.tokens())
    }

    /// Tokens of its answer.
    pub fn tokens(&self) -> u32 {
        if self.greedy.is_empty() { TOKENS } else { self.greedy.len() as u32 }
    }

    /// The request.
    pub fn ask(&self) -> Ask {
        self.about(&self.images)
    }
}

fn json(path: &Path) -> Value {
    let text = std::fs::read(path).expect("in the repository");
    serde_json::from_slice(&text).expect("JSON")
}

/// The file of an image of a golden file. `patch`: pixels of a patch's side. `turned`: the pixels in
/// the opposite order, which is another image of the same size.
fn file(shot: &Value, patch: u32, turned: bool) -> Vec<u8> {
    let side = |key: &str| shot[key].as_u64().expect("a number") as u32 * patch;
    let digits = shot["pixels"].as_str().expect("hex").as_bytes().chunks(2);
    let byte = |two: &[u8]| {
        let two = std::str::from_utf8(two).expect("digits");
        u8::from_str_radix(two, 16).expect("hex")
    };
    let mut pixels: Vec<u8> = digits.map(byte).collect();
    if turned {
        pixels.reverse();
    }
    png(side("columns"), side("rows"), &pixels, &[])
}

/// A prompt of ids about the image "exact", and what the reference makes of it.
pub struct Direct {
    /// File of the image. Its size is one that the model reads as it is.
    pub image: Vec<u8>,
    /// The ids, with one placeholder for the image.
    pub ids: Vec<u32>,
    /// How many ids there are with all placeholders.
    pub prompt_tokens: usize,
    /// The ids that follow, up to the first one that the tokenizer cannot write: the service chooses
    /// none of those.
    pub greedy: Vec<u32>,
}

/// The case of ids about one image in the golden file `{golden}.json` of the model in `dir`.
pub fn direct(golden: &Path, dir: &Path) -> Direct {
    let config = json(&dir.join("config.json"));
    let tokenizer = json(&dir.join("tokenizer.json"));
    let words = tokenizer["model"]["vocab"].as_object().expect("words").values();
    let added = tokenizer["added_tokens"].as_array().expect("a list").iter();
    let written: Vec<&Value> = words.chain(added.map(|token| &token["id"])).collect();
    let golden = json(&golden.with_extension("json"));
    let patch = config["vision_config"]["patch_size"].as_u64().expect("a size") as u32;
    let list = |key: &str| golden[key].as_array().expect("a list").iter();
    let case = list("cases").find(|case| case["images"] == serde_json::json!(["exact"]));
    let case = case.expect("a case of this image");
    let ids = |key: &str| serde_json::from_value::<Vec<u32>>(case[key].clone()).expect("ids");
    let mut prompt = ids("prompt");
    let prompt_tokens = prompt.len();
    // A Gemma's service writes the ids around an image.
    prompt.retain(|id| config["boi_token_id"] != *id && config["eoi_token_id"] != *id);
    prompt.dedup_by(|one, next| one == next && config["image_token_id"] == *one);
    let shot = list("images").find(|shot| shot["name"] == "exact").expect("drawn");
    let image = file(shot, patch, false);
    let mut greedy = ids("greedy");
    let end = greedy.iter().position(|id| !written.iter().any(|one| *one == id));
    greedy.truncate(end.unwrap_or(greedy.len()));
    assert!(greedy.len() >= 16, "{} ids can be compared", greedy.len());
    Direct { image, ids: prompt, prompt_tokens, greedy }
}

/// The questions in the golden file `{golden}.json` of the model in `dir`: one about one image, and one
/// about two of different sizes. A file without answers has images alone. `turned`: see [`file`].
pub fn cases(golden: &Path, dir: &Path, turned: bool) -> Vec<Case> {
    let golden = json(&golden.with_extension("json"));
    let config = json(&dir.join("config.json"));
    let patch = config["vision_config"]["patch_size"].as_u64().expect("a size") as u32;
    let shot = |name: &str| {
        let mut shots = golden["images"].as_array().expect("a list").iter();
        let shot = shots.find(|shot| shot["name"] == name).expect("an image of this name");
        file(shot, patch, turned)
    };
    let answered = |case: &Value| {
        let ids = |key: &str| serde_json::from_value::<Vec<u32>>(case[key].clone()).expect("ids");
        let names = case["images"].as_array().expect("names").iter();
        Case {
            question: case["text"].as_str().expect("a text").to_owned(),
            images: names.map(|name| shot(name.as_str().expect("a name"))).collect(),
            prompt: ids("prompt"),
            greedy: ids("greedy"),
        }
    };
    let unanswered = |images: &[&str]| Case {
        question: "What is it?".into(),
        images: images.iter().map(|name| shot(name)).collect(),
        prompt: vec![],
        greedy: vec![],
    };
    let cases: Vec<Case> = match golden["served"].as_array() {
        Some(served) => served.iter().map(answered).collect(),
        None => {
            let shots = golden["images"].as_array().expect("a list");
            let size = |shot: &Value| (shot["rows"].clone(), shot["columns"].clone());
            let exact = shots.iter().find(|shot| shot["name"] == "exact").expect("drawn");
            let other = shots.iter().find(|shot| size(shot) != size(exact));
            let other = other.and_then(|shot| shot["name"].as_str()).expect("of another size");
            [&["exact"][..], &[other, "exact"]].into_iter().map(unanswered).collect()
        }
    };
    assert_eq!(cases.iter().map(|case| case.images.len()).collect::<Vec<_>>(), [1, 2]);
    cases
}
