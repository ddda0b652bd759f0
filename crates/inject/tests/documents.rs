//! The table of annotations in `docs/guide/kubernetes.md` is made of the one in this crate.
//! `UPDATE_DOCS=1` writes it.

use std::path::PathBuf;

use tollway_inject::{ANNOTATIONS, Annotation};

const BEGIN: &str = "<!-- annotations: begin -->\n";
const END: &str = "<!-- annotations: end -->";

#[test]
fn the_guide_lists_every_annotation() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/kubernetes.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (tables, after) = rest.split_once(END).unwrap();
    let wanted = tables_of_annotations();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        return std::fs::write(path, format!("{before}{BEGIN}{wanted}{END}{after}")).unwrap();
    }
    assert!(tables == wanted, "docs/guide/kubernetes.md is out of date: run `cargo xtask codegen`");
}

fn tables_of_annotations() -> String {
    let own = table("Tollway's own:", |annotation| !annotation.is_daprs());
    let daprs = table("Dapr's, for pods with `dapr.io/enabled`:", |annotation| {
        annotation.is_daprs() && !annotation.is_ignored()
    });
    let ignored = table("Dapr's without an effect; a note has the reason:", |annotation| {
        annotation.is_ignored()
    });
    format!("\n{own}\n{daprs}\n{ignored}\n")
}

fn table(title: &str, belongs: impl Fn(&Annotation) -> bool) -> String {
    let mut text =
        format!("{title}\n\n| annotation | takes | example | meaning |\n|---|---|---|---|\n");
    for annotation in ANNOTATIONS.iter().filter(|annotation| belongs(annotation)) {
        let refused = if annotation.is_refused() { "refused: " } else { "" };
        let row = format!(
            "| `{}` | {} | `{}` | {refused}{} |\n",
            annotation.name,
            annotation.takes(),
            annotation.example,
            annotation.meaning
        );
        text.push_str(&row);
    }
    text
}
