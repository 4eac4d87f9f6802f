//! The names in a template's syntax tree: which variables it reads, which keys it asks objects for,
//! and which filters, tests, functions and methods it calls in any branch.
//!
//! The algorithm: one walk in the order of evaluation, with a scope for each body. A variable is
//! read if no scope around the place has it yet. So `{% set x = x or 1 %}` reads `x`.

use std::collections::{BTreeSet, HashSet};

use minijinja::machinery::ast::{CallArg, Expr, Macro, Stmt};
use minijinja::machinery::parse;
use minijinja::syntax::SyntaxConfig;

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
    /// The names in a template with this source. Errors name the template.
    ///
    /// # Errors
    /// The first syntax error, with its line.
    pub(super) fn of(
        source: &str,
        name: &str,
        syntax: SyntaxConfig,
    ) -> Result<Self, minijinja::Error> {
        let tree = parse(source, name, syntax)?;
        let mut walk = Walk { scopes: vec![HashSet::new()], names: Self::default() };
        walk.statement(&tree);
        Ok(walk.names)
    }
}

struct Walk<'a> {
    scopes: Vec<HashSet<&'a str>>,
    names: Names,
}

impl<'a> Walk<'a> {
    fn statement(&mut self, statement: &Stmt<'a>) {
        match statement {
            Stmt::Template(node) => self.all(&node.children),
            Stmt::EmitExpr(node) => self.expression(&node.expr),
            Stmt::ForLoop(node) => {
                self.expression(&node.iter);
                self.scoped(&node.body, |walk| {
                    walk.assign_name("loop");
                    walk.assign(&node.target);
                    walk.optional(node.filter_expr.as_ref());
                });
                self.scoped(&node.else_body, |_| {});
            }
            Stmt::IfCond(node) => {
                self.expression(&node.expr);
                self.scoped(&node.true_body, |_| {});
                self.scoped(&node.false_body, |_| {});
            }
            Stmt::WithBlock(node) => self.scoped(&node.body, |walk| {
                for (target, value) in &node.assignments {
                    walk.expression(value);
                    walk.assign(target);
                }
            }),
            Stmt::Set(node) => {
                self.expression(&node.expr);
                self.assign(&node.target);
            }
            Stmt::SetBlock(node) => {
                self.optional(node.filter.as_ref());
                self.scoped(&node.body, |_| {});
                self.assign(&node.target);
            }
            Stmt::AutoEscape(node) => self.scoped(&node.body, |_| {}),
            Stmt::FilterBlock(node) => {
                self.expression(&node.filter);
                self.scoped(&node.body, |_| {});
            }
            Stmt::Block(node) => self.scoped(&node.body, |_| {}),
            Stmt::Macro(node) => {
                self.assign_name(node.name);
                self.defined(node);
            }
            Stmt::CallBlock(node) => {
                self.called(&node.call.expr, &node.call.args);
                self.defined(&node.macro_decl);
            }
            Stmt::Do(node) => self.called(&node.call.expr, &node.call.args),
            // They have no expressions, or name other templates, of which there are none.
            Stmt::EmitRaw(_)
            | Stmt::Continue(_)
            | Stmt::Break(_)
            | Stmt::Import(_)
            | Stmt::FromImport(_)
            | Stmt::Extends(_)
            | Stmt::Include(_) => {}
        }
    }

    fn all(&mut self, statements: &[Stmt<'a>]) {
        statements.iter().for_each(|statement| self.statement(statement));
    }

    /// Walks a body in a scope of its own that `begin` fills.
    fn scoped(&mut self, body: &[Stmt<'a>], begin: impl FnOnce(&mut Self)) {
        self.scopes.push(HashSet::new());
        begin(self);
        self.all(body);
        self.scopes.pop();
    }

    fn defined(&mut self, node: &Macro<'a>) {
        node.defaults.iter().for_each(|value| self.expression(value));
        self.scoped(&node.body, |walk| {
            walk.assign_name("caller");
            node.args.iter().for_each(|target| walk.assign(target));
        });
    }

    fn assign_name(&mut self, name: &'a str) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.insert(name);
        }
    }

    fn assign(&mut self, target: &Expr<'a>) {
        match target {
            Expr::Var(node) => self.assign_name(node.id),
            Expr::List(node) => node.items.iter().for_each(|item| self.assign(item)),
            Expr::Tuple(node) => node.items.iter().for_each(|item| self.assign(item)),
            // An attribute of a namespace.
            other => self.expression(other),
        }
    }

    fn is_own(&self, name: &str) -> bool {
        self.scopes.iter().any(|scope| scope.contains(name))
    }

    fn optional(&mut self, expression: Option<&Expr<'a>>) {
        if let Some(expression) = expression {
            self.expression(expression);
        }
    }

    fn arguments(&mut self, arguments: &[CallArg<'a>]) {
        for argument in arguments {
            match argument {
                CallArg::Pos(value)
                | CallArg::Kwarg(_, value)
                | CallArg::PosSplat(value)
                | CallArg::KwargSplat(value) => self.expression(value),
            }
        }
    }

    fn called(&mut self, what: &Expr<'a>, arguments: &[CallArg<'a>]) {
        match what {
            Expr::Var(node) if !self.is_own(node.id) => {
                self.names.functions.insert(node.id.to_owned());
            }
            Expr::GetAttr(node) => {
                self.names.methods.insert(node.name.to_owned());
                self.expression(&node.expr);
            }
            other => self.expression(other),
        }
        self.arguments(arguments);
    }

    fn expression(&mut self, expression: &Expr<'a>) {
        match expression {
            Expr::Var(node) if self.is_own(node.id) => {}
            Expr::Var(node) => {
                self.names.variables.insert(node.id.to_owned());
            }
            Expr::Const(node) => {
                self.names.keys.extend(node.value.as_str().map(str::to_owned));
            }
            Expr::Slice(node) => {
                self.expression(&node.expr);
                for bound in [&node.start, &node.stop, &node.step] {
                    self.optional(bound.as_ref());
                }
            }
            Expr::UnaryOp(node) => self.expression(&node.expr),
            Expr::BinOp(node) => {
                self.expression(&node.left);
                self.expression(&node.right);
            }
            Expr::Compare(node) => {
                self.expression(&node.expr);
                node.ops.iter().for_each(|other| self.expression(&other.expr));
            }
            Expr::IfExpr(node) => {
                self.expression(&node.test_expr);
                self.expression(&node.true_expr);
                self.optional(node.false_expr.as_ref());
            }
            Expr::Filter(node) => {
                self.names.filters.insert(node.name.to_owned());
                self.optional(node.expr.as_ref());
                self.arguments(&node.args);
            }
            Expr::Test(node) => {
                self.names.tests.insert(node.name.to_owned());
                self.expression(&node.expr);
                self.arguments(&node.args);
            }
            Expr::GetAttr(node) => {
                self.names.keys.insert(node.name.to_owned());
                self.expression(&node.expr);
            }
            Expr::GetItem(node) => {
                self.expression(&node.expr);
                self.expression(&node.subscript_expr);
            }
            Expr::Call(node) => self.called(&node.expr, &node.args),
            Expr::List(node) => node.items.iter().for_each(|item| self.expression(item)),
            Expr::Tuple(node) => node.items.iter().for_each(|item| self.expression(item)),
            Expr::Map(node) => {
                node.keys.iter().chain(&node.values).for_each(|item| self.expression(item));
            }
        }
    }
}
