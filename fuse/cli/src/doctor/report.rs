//! What was found: a line for each check, as text and as JSON.

use crate::failure::{Exit, Failure};
use crate::output;
use nfsrdma_rpcrdma::words::counted;
use serde::Serialize;

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Ok,
    /// It works, but not as well as it could.
    Warn,
    /// A mount fails, or does harm.
    Fail,
    /// It could not be examined, or does not matter here.
    Skip,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Warn => "warn",
            Verdict::Fail => "fail",
            Verdict::Skip => "skip",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) verdict: Verdict,
    pub(super) found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remedy: Option<String>,
}

impl Finding {
    fn new(check: &'static str, verdict: Verdict, found: impl Into<String>) -> Self {
        Finding {
            check,
            verdict,
            found: found.into(),
            remedy: None,
        }
    }

    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self::new(check, Verdict::Ok, found)
    }

    pub(super) fn skip(check: &'static str, why: impl Into<String>) -> Self {
        Self::new(check, Verdict::Skip, why)
    }

    fn with_remedy(
        check: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding {
            remedy: Some(remedy.into()),
            ..Self::new(check, verdict, found)
        }
    }

    pub(super) fn warn(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::with_remedy(check, Verdict::Warn, found, remedy)
    }

    pub(super) fn fail(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::with_remedy(check, Verdict::Fail, found, remedy)
    }

    /// A failure whose message, as all of this program, ends with the remedy.
    pub(super) fn told(check: &'static str, verdict: Verdict, message: &str) -> Self {
        match message.rsplit_once("; ").or(message.rsplit_once(": ")) {
            Some((found, remedy)) => Self::with_remedy(check, verdict, found, remedy),
            None => Self::new(check, verdict, message),
        }
    }

    fn line(&self) -> String {
        let Finding {
            check,
            verdict,
            found,
            ..
        } = self;
        let line = format!("{:<5} {check:<12} {found}", verdict.word());
        match &self.remedy {
            Some(remedy) => format!("{line}; {remedy}"),
            None => line,
        }
    }
}

/// All findings so far. Unless they are for a JSON document, each is printed when it is added.
#[derive(Debug)]
pub(super) struct Report {
    target: Option<String>,
    pub(super) findings: Vec<Finding>,
    json: bool,
    unwritten: Option<Failure>,
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a str>,
    problems: usize,
    checks: &'a [Finding],
}

impl Report {
    pub(super) fn new(target: Option<String>, json: bool) -> Self {
        Report {
            target,
            findings: Vec::new(),
            json,
            unwritten: None,
        }
    }

    pub(super) fn add(&mut self, finding: Finding) {
        if !self.json {
            // The words of a server may have line breaks.
            let line = output::plain(&finding.line());
            // A closed pipe does not end the examination, because its exit status is a result, too.
            if let Err(failure) = output::result(&format!("{line}\n")) {
                self.unwritten.get_or_insert(failure);
            }
        }
        self.findings.push(finding);
    }

    fn count(&self, verdict: Verdict) -> usize {
        let same = self.findings.iter().filter(|one| one.verdict == verdict);
        same.count()
    }

    fn problems(&self) -> usize {
        self.count(Verdict::Warn) + self.count(Verdict::Fail)
    }

    pub(super) fn text(&self) -> String {
        let lines = self.findings.iter().map(|one| output::plain(&one.line()));
        lines.map(|line| line + "\n").collect()
    }

    pub(super) fn document(&self) -> Result<String, Failure> {
        let document = Document {
            version: env!("CARGO_PKG_VERSION"),
            target: self.target.as_deref(),
            problems: self.problems(),
            checks: &self.findings,
        };
        serde_json::to_string_pretty(&document)
            .map(|text| text + "\n")
            .map_err(|error| Failure::new(Exit::Internal, format!("cannot write JSON: {error}")))
    }

    /// Prints the document, if it is wanted. The error is the summary, if there are problems.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        if self.json {
            output::json(&self.document()?)?;
        }
        match (self.unwritten.take(), self.summary()) {
            (Some(failure), _) => Err(failure),
            (None, Some(summary)) => Err(Failure::new(Exit::Usage, summary)),
            (None, None) => Ok(()),
        }
    }

    /// How many problems there are, if any.
    fn summary(&self) -> Option<String> {
        let (failed, warned) = (self.count(Verdict::Fail), self.count(Verdict::Warn));
        let (failures, warnings) = (counted(failed, "failure"), counted(warned, "warning"));
        match (failed, warned) {
            (0, 0) => None,
            (0, _) => Some(warnings),
            (_, 0) => Some(failures),
            _ => Some(format!("{failures}, {warnings}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_as_what_and_remedy() {
        let told = |message: &str| Finding::told("connect", Verdict::Fail, message);
        let both = told("cannot connect to srv: refused; check its log");
        assert_eq!(both.found, "cannot connect to srv: refused");
        assert_eq!(both.remedy.as_deref(), Some("check its log"));
        let line = told("srv does not export /x: 'nfsrdma exports srv' lists").line();
        assert_eq!(
            line,
            "fail  connect      srv does not export /x; 'nfsrdma exports srv' lists"
        );
        assert_eq!(told("no more is known").remedy, None);
    }
}
