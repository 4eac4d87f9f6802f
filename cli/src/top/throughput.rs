//! Generated tokens per second over time, as the gateway counts them: the supervisor counts tokens
//! of speculation alone.

use serde::Deserialize;

use crate::gateway_http::GatewayHttp;

/// Throughput of the past, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Throughput {
    /// Seconds of one number.
    pub interval_s: u64,
    /// Generated tokens per second.
    pub tokens_per_s: Vec<f64>,
}

/// Seconds whose mean is the present throughput, as on the status page.
const PRESENT_S: u64 = 10;

/// What is read of the gateway's `GET /status`.
#[derive(Deserialize)]
struct GatewayStatus {
    throughput: Throughput,
}

impl Throughput {
    /// The throughput of the last ten minutes.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub async fn ask(gateway: &GatewayHttp) -> Result<Self, String> {
        Ok(gateway.get::<GatewayStatus>("/status").await?.throughput)
    }

    /// Mean of the last ten seconds; `None` without a number.
    pub fn present(&self) -> Option<f64> {
        let count = (PRESENT_S / self.interval_s.max(1)).max(1) as usize;
        let rates = &self.tokens_per_s;
        let recent = &rates[rates.len().saturating_sub(count)..];
        (!recent.is_empty()).then(|| recent.iter().sum::<f64>() / recent.len() as f64)
    }

    /// The largest number.
    pub fn peak(&self) -> f64 {
        self.tokens_per_s.iter().copied().fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_throughput_is_a_part_of_the_gateways_status() {
        let body = r#"{"time":1,"throughput":{"interval_s":2,"most":300,"tokens_per_s":[0.0,12.5],"calls":[0,1]}}"#;
        let status: GatewayStatus = serde_json::from_str(body).expect("JSON");
        let expected = Throughput { interval_s: 2, tokens_per_s: vec![0.0, 12.5] };
        assert_eq!(status.throughput, expected);
    }

    #[test]
    fn the_present_throughput_is_a_mean_of_ten_seconds() {
        let of = |interval_s, rates: &[f64]| Throughput { interval_s, tokens_per_s: rates.into() };
        assert_eq!(of(2, &[90.0, 1.0, 2.0, 3.0, 4.0, 5.0]).present(), Some(3.0));
        assert_eq!(of(0, &[4.0, 2.0]).present(), Some(3.0));
        assert_eq!(of(60, &[4.0, 2.0]).present(), Some(2.0));
        assert_eq!((of(2, &[]).present(), of(2, &[1.0, 7.0, 2.0]).peak()), (None, 7.0));
    }
}
