//! What a router reads of a service besides answers, and images that pass through it unread.

use paceline_tests::images::{about, data_url, seeing_with};
use paceline_tests::python::Clients;
use paceline_tests::router::Router;
use paceline_tests::{Stack, repository};
use serde_json::json;

use crate::smg::{CHAT, KIND, end};
use crate::texts::{object, whole_text};

const QUESTION: &str = "Describe the picture.";

#[test]
#[ignore = "more: a package of a registry"]
fn an_image_arrives_through_smg() {
    let Some(clients) = KIND.installed("an_image_arrives_through_smg") else { return };
    let stack = seeing_with(&repository().join("demo/vision/target"), "");
    let router = Router::start(KIND, &clients, &[&stack], &["--mm-processing", "worker"]);
    let models = object(&router.ask("GET", "/v1/models", "").expect("an answer"));
    let model = &models["data"][0]["id"];
    for name in ["shapes.png", "digit.png"] {
        let file = std::fs::read(repository().join("demo/vision/images").join(name));
        let file = file.expect("in the repository");
        let content = json!([
            {"type": "image_url", "image_url": {"url": data_url(&file)}},
            {"type": "text", "text": QUESTION},
        ]);
        let body = json!({
            "model": model, "max_tokens": 40, "temperature": 0,
            "messages": [{"role": "user", "content": content}],
        });
        let own = stack.ask(about(file, QUESTION).max_tokens(40)).expect("own");
        let answer = router.json(CHAT, &body);
        assert_eq!(whole_text(&answer), own.text, "{name}");
        assert_eq!(object(&answer)["usage"]["prompt_tokens"], own.usage().prompt_tokens, "{name}");
    }
    end(stack, router);
}

#[test]
#[ignore = "more: a package of a registry"]
fn the_archive_for_smg_has_the_files_of_the_checkpoint() {
    let Some(clients) = KIND.installed("the_archive_for_smg_has_the_files") else { return };
    for model in ["demo/target", "demo/vision/target"] {
        let model = repository().join(model);
        let stack = Stack::ready(&format!("target.model = {model:?}\ndrafter.model = \"\"\n"));
        let mut command = clients.command(&["smg_tokenizer.py", &stack.address()]);
        Clients::passes(command.arg(&model));
        stack.stop();
    }
}
