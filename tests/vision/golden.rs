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
    pub prompt: Vec<u32>,
    pub greedy: Vec<u32>,
}

impl Case {
    /// The request of these files and the question.
    pub fn about(&self, images: &[Vec<u8>]) -> Ask {
        let images = images.iter().map(|file| image(file.clone()));
        let parts: Vec<ContentPart> = images.chain([text(&self.question)]).collect();
        conversation(vec![turn(parts)]).exactly(self.greedy.len() as u32)
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

/// The questions in the golden file of the model in `dir`: one about one image, and one about two of
/// different sizes. `turned`: see [`file`].
pub fn cases(dir: &Path, turned: bool) -> Vec<Case> {
    let golden = json(&dir.with_extension("json"));
    let config = json(&dir.join("config.json"));
    let patch = config["vision_config"]["patch_size"].as_u64().expect("a size") as u32;
    let shot = |name: &Value| {
        let mut shots = golden["images"].as_array().expect("a list").iter();
        file(
            shots.find(|shot| shot["name"] == *name).expect("an image of this name"),
            patch,
            turned,
        )
    };
    let case = |case: &Value| {
        let ids = |key: &str| serde_json::from_value::<Vec<u32>>(case[key].clone()).expect("ids");
        Case {
            question: case["text"].as_str().expect("a text").to_owned(),
            images: case["images"].as_array().expect("names").iter().map(shot).collect(),
            prompt: ids("prompt"),
            greedy: ids("greedy"),
        }
    };
    let cases: Vec<Case> = golden["served"].as_array().expect("cases").iter().map(case).collect();
    assert_eq!(cases.iter().map(|case| case.images.len()).collect::<Vec<_>>(), [1, 2]);
    cases
}
