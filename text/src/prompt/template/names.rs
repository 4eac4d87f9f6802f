//! The names in a compiled template: which variables it reads, which keys it asks objects for, and
//! which filters, tests, functions and methods it calls in any branch.
//!
//! The algorithm: one pass over the instructions, which stand in the order of evaluation. A variable
//! is read if no instruction before has stored it. So `{% set x = x or 1 %}` reads `x`. An
//! instruction that a jump may skip, in a branch, a loop or a macro, stores for the instructions up
//! to the jump's target alone.

use std::collections::{BTreeSet, HashMap};

use minijinja::Value;
use minijinja::machinery::{CompiledTemplate, Instruction, Instructions};

/// Functions of loops and macros.
const LOCAL: [&str; 2] = ["caller", "loop"];

/// All names of a template, by what they stand for.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// Variables that are read before the template assigns them.
    pub(super) variables: BTreeSet<String>,
    /// Attributes, and all texts that may be keys.
    pub(super) keys: BTreeSet<String>,
    pub(super) filters: BTreeSet<String>,
    pub(super) tests: BTreeSet<String>,
    /// Functions that the template does not define.
    pub(super) functions: BTreeSet<String>,
    pub(super) methods: BTreeSet<String>,
}

impl Names {
    /// The names in a template.
    pub(super) fn of(template: &CompiledTemplate<'_>) -> Self {
        let mut names = Self::default();
        names.add(&template.instructions);
        template.blocks.values().for_each(|block| names.add(block));
        names
    }

    fn add(&mut self, instructions: &Instructions<'_>) {
        let mut targets: Vec<u32> = vec![];
        // The place up to which a name is stored.
        let mut stored: HashMap<&str, u32> = HashMap::new();
        for at in 0..u32::MAX {
            let Some(instruction) = instructions.get(at) else { break };
            let (names, name) = match instruction {
                Instruction::Jump(target)
                | Instruction::JumpIfFalse(target)
                | Instruction::Iterate(target) => {
                    targets.push(*target);
                    continue;
                }
                Instruction::StoreLocal(name) => {
                    targets.retain(|target| *target > at);
                    let end = targets.iter().copied().min().unwrap_or(u32::MAX);
                    let known = stored.entry(name).or_default();
                    *known = end.max(*known);
                    continue;
                }
                Instruction::LoadConst(value) => {
                    self.add_keys(value);
                    continue;
                }
                Instruction::Lookup(name) if stored.get(name).is_some_and(|end| at < *end) => {
                    continue;
                }
                Instruction::Lookup(name) => (&mut self.variables, name),
                Instruction::GetAttr(name) | Instruction::SetAttr(name) => (&mut self.keys, name),
                Instruction::ApplyFilter(name, ..) => (&mut self.filters, name),
                Instruction::PerformTest(name, ..) => (&mut self.tests, name),
                Instruction::CallFunction(name, _) => (&mut self.functions, name),
                Instruction::CallMethod(name, _) => (&mut self.methods, name),
                _ => continue,
            };
            names.insert((*name).to_owned());
        }
        // A macro may be called in its own body, before it is stored.
        self.functions.retain(|name| !stored.contains_key(&**name) && !LOCAL.contains(&&**name));
    }

    /// Adds a text, or the texts of a list.
    fn add_keys(&mut self, value: &Value) {
        match value.as_str() {
            Some(text) => {
                self.keys.insert(text.to_owned());
            }
            None => value.try_iter().into_iter().flatten().for_each(|item| self.add_keys(&item)),
        }
    }
}
