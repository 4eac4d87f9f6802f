//! What the configuration says to the plan of a model.

use paceline_checkpoint::plan::{DeviceKind, KV_SHARE, KvBudget, PlanOptions, ProductsChoice};
use paceline_proto::report::DeviceReport;

use super::{Config, ProductsSetting};

impl Config {
    /// How the target is loaded on the device of this report.
    pub fn plan_options(&self, report: &DeviceReport) -> PlanOptions {
        let has_kernels = report.instructions.is_some();
        PlanOptions {
            device: DeviceKind { on_gpu: report.on_gpu, has_kernels },
            keep_quantized: self.target.keep_quantized,
            vision: self.target.vision,
            products: self.products_choice(),
        }
    }

    /// The products that `target.products` names.
    pub fn products_choice(&self) -> ProductsChoice {
        match self.target.products {
            ProductsSetting::Auto => ProductsChoice::Auto,
            ProductsSetting::Float => ProductsChoice::Float,
            ProductsSetting::Integer => ProductsChoice::Integer,
        }
    }

    /// The memory for keys and values.
    pub fn kv_memory(&self) -> KvBudget {
        let share = self.kv.budget_fraction.or(KV_SHARE);
        KvBudget { bytes: self.kv.budget_bytes.given(), share }
    }
}
