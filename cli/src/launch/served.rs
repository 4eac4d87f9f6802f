//! The served model, as an agent has to know it.

use paceline_client::Failure;
use paceline_client::channel::OwnAddresses;
use paceline_process::Loaded;
use paceline_protocols::openai::models::ModelList;

use crate::gateway_http::GatewayHttp;

/// The model, and the way to it.
#[derive(Clone, Debug, Default)]
pub struct ServedModel {
    /// `host:port` of the gateway's HTTP.
    pub address: String,
    /// The API key; a word that opens nothing if none is needed, because agents want one.
    pub key: String,
    /// Name of the model.
    pub name: String,
    /// Most tokens of prompt and answer together.
    pub context_length: u32,
    /// Most tokens of an answer.
    pub max_new_tokens: u32,
    /// Whether the model takes conversations.
    pub chat: bool,
    /// Whether conversations may have tools.
    pub tools: bool,
    /// The list of models in the form that Codex CLI reads.
    pub catalogue: String,
}

impl ServedModel {
    /// Asks the running service.
    ///
    /// # Errors
    /// The service does not answer, has no HTTP, or serves no model.
    pub async fn ask(loaded: &Loaded) -> Result<Self, Failure> {
        let gateway = GatewayHttp::of(&OwnAddresses::find(loaded).await);
        let list = gateway.get::<ModelList>("/v1/models").await.map_err(Failure::unreachable)?;
        let none = || Failure::refused_here("expected a served model, found none");
        let model = list.data.first().ok_or_else(none)?;
        let extension = &model.paceline;
        Ok(Self {
            address: gateway.address().map_err(Failure::unreachable)?.to_owned(),
            key: gateway.key().unwrap_or("none").to_owned(),
            name: model.id.clone(),
            context_length: model.context_length,
            max_new_tokens: extension.max_new_tokens,
            chat: extension.capabilities.chat,
            tools: extension.capabilities.tools,
            catalogue: serde_json::to_string(&list).expect("it was read from JSON"),
        })
    }

    /// Address of HTTP with this path.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// The address without its port.
    pub fn host(&self) -> String {
        let host = self.address.rsplit_once(':').map_or(self.address.as_str(), |(host, _)| host);
        host.trim_matches(['[', ']']).to_owned()
    }

    /// Most tokens that an agent should ask of one answer: a quarter of the context, so that three
    /// quarters remain for the conversation.
    pub fn answer_length(&self) -> u32 {
        self.max_new_tokens.min(self.context_length / 4).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_host_and_an_answer_leaves_room() {
        let model = |address: &str| ServedModel { address: address.into(), ..Default::default() };
        assert_eq!(model("127.0.0.1:8061").url("/v1"), "http://127.0.0.1:8061/v1");
        assert_eq!(
            (model("[::1]:80").host(), model("mac:80").host()),
            ("::1".into(), "mac".into())
        );
        let lengths = |context_length, max_new_tokens| {
            ServedModel { context_length, max_new_tokens, ..Default::default() }.answer_length()
        };
        assert_eq!((lengths(32_768, 32_000), lengths(32_768, 512)), (8_192, 512));
    }
}
