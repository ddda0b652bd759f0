//! Differences of two texts by lines, in the unified form of `diff -u`.

use std::fmt::Write as _;
use std::ops::Range;

/// Unchanged lines that are shown around a change.
const CONTEXT: usize = 3;
/// Pairs of lines that are compared for the shortest difference. Beyond it everything between the
/// first and the last change is replaced.
const PAIRS_LIMIT: usize = 16 << 20;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Edit {
    Same,
    Removed,
    Added,
}

/// The hunks that lead from `before` to `after`; empty if they are equal.
pub(super) fn unified(before: &str, after: &str) -> String {
    let (before, after): (Vec<&str>, Vec<&str>) =
        (before.lines().collect(), after.lines().collect());
    let edits = edits(&before, &after);
    let mut text = String::new();
    for hunk in hunks(&edits) {
        write_hunk(&mut text, &edits, hunk, &before, &after);
    }
    text
}

/// The fewest lines that are removed and added, in order.
fn edits(before: &[&str], after: &[&str]) -> Vec<Edit> {
    let start = before.iter().zip(after).take_while(|(one, other)| one == other).count();
    let (left, right) = (&before[start..], &after[start..]);
    let end = left.iter().rev().zip(right.iter().rev()).take_while(|(a, b)| a == b).count();
    let (left, right) = (&left[..left.len() - end], &right[..right.len() - end]);
    let mut edits = vec![Edit::Same; start];
    edits.extend(between(left, right));
    edits.extend(vec![Edit::Same; end]);
    edits
}

fn between(left: &[&str], right: &[&str]) -> Vec<Edit> {
    let (rows, columns) = (left.len(), right.len());
    if rows.saturating_mul(columns) > PAIRS_LIMIT {
        return [vec![Edit::Removed; rows], vec![Edit::Added; columns]].concat();
    }
    // Lengths of the longest common part of what follows row and column.
    let width = columns + 1;
    let mut common = vec![0_u32; (rows + 1) * width];
    for row in (0..rows).rev() {
        for column in (0..columns).rev() {
            let at = row * width + column;
            common[at] = if left[row] == right[column] {
                common[at + width + 1] + 1
            } else {
                common[at + width].max(common[at + 1])
            };
        }
    }
    let mut edits = Vec::with_capacity(rows + columns);
    let (mut row, mut column) = (0, 0);
    while row < rows || column < columns {
        let at = row * width + column;
        if row < rows && column < columns && left[row] == right[column] {
            edits.push(Edit::Same);
            (row, column) = (row + 1, column + 1);
        } else if column == columns || (row < rows && common[at + width] >= common[at + 1]) {
            edits.push(Edit::Removed);
            row += 1;
        } else {
            edits.push(Edit::Added);
            column += 1;
        }
    }
    edits
}

/// Ranges of edits that are shown together: changes with their context.
fn hunks(edits: &[Edit]) -> Vec<Range<usize>> {
    let mut hunks: Vec<Range<usize>> = Vec::new();
    for (at, edit) in edits.iter().enumerate() {
        if *edit == Edit::Same {
            continue;
        }
        let (from, to) = (at.saturating_sub(CONTEXT), (at + 1 + CONTEXT).min(edits.len()));
        match hunks.last_mut() {
            Some(last) if from <= last.end => last.end = to,
            _ => hunks.push(from..to),
        }
    }
    hunks
}

fn write_hunk(
    text: &mut String,
    edits: &[Edit],
    hunk: Range<usize>,
    before: &[&str],
    after: &[&str],
) {
    let count = |range: Range<usize>, other: Edit| {
        edits[range].iter().filter(|edit| **edit != other).count()
    };
    let (mut left, mut right) =
        (count(0..hunk.start, Edit::Added), count(0..hunk.start, Edit::Removed));
    let (lefts, rights) = (count(hunk.clone(), Edit::Added), count(hunk.clone(), Edit::Removed));
    let (from, to) = (span(left, lefts), span(right, rights));
    let _ = writeln!(text, "@@ -{from} +{to} @@");
    for edit in &edits[hunk] {
        let (mark, line) = match edit {
            Edit::Same => (' ', before[left]),
            Edit::Removed => ('-', before[left]),
            Edit::Added => ('+', after[right]),
        };
        let _ = writeln!(text, "{mark}{line}");
        left += usize::from(*edit != Edit::Added);
        right += usize::from(*edit != Edit::Removed);
    }
}

/// The first line, counted from 1, and how many there are; an empty range stands after a line.
fn span(skipped: usize, count: usize) -> String {
    match count {
        0 => format!("{skipped},0"),
        1 => format!("{}", skipped + 1),
        _ => format!("{},{count}", skipped + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(before: &str, after: &str, expected: &str) {
        assert_eq!(unified(before, after), expected);
    }

    #[test]
    fn changes_are_shown_with_three_lines_around_them() {
        check("a\nb\n", "a\nb\n", "");
        check("", "a\nb\n", "@@ -0,0 +1,2 @@\n+a\n+b\n");
        check("a\n", "", "@@ -1 +0,0 @@\n-a\n");
        check(
            "1\n2\n3\n4\n5\n6\n7\n8\n9\n",
            "1\n2\n3\n4\nfive\n6\n7\n8\n9\n",
            "@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n",
        );
        check("a\nb\nc\n", "b\nx\nc\n", "@@ -1,3 +1,3 @@\n-a\n b\n+x\n c\n");
    }

    #[test]
    fn changes_that_are_far_apart_are_shown_apart() {
        let before: Vec<String> = (1..=20).map(|n| format!("{n}\n")).collect();
        let mut after = before.clone();
        after[0] = "one\n".to_owned();
        after.push("21\n".to_owned());
        check(
            &before.concat(),
            &after.concat(),
            "@@ -1,4 +1,4 @@\n-1\n+one\n 2\n 3\n 4\n@@ -18,3 +18,4 @@\n 18\n 19\n 20\n+21\n",
        );
    }

    proptest::proptest! {
        /// `patch` would make the one of the other.
        #[test]
        fn removed_and_added_lines_lead_from_one_text_to_the_other(
            before in proptest::collection::vec("[abc]", 0..12),
            after in proptest::collection::vec("[abc]", 0..12),
        ) {
            let (left, right): (Vec<&str>, Vec<&str>) =
                (before.iter().map(String::as_str).collect(), after.iter().map(String::as_str).collect());
            let (mut from, mut to) = (left.iter(), right.iter());
            let mut rebuilt: Vec<&str> = Vec::new();
            for edit in edits(&left, &right) {
                match edit {
                    Edit::Same => {
                        rebuilt.extend(from.next().copied());
                        to.next();
                    }
                    Edit::Removed => {
                        from.next();
                    }
                    Edit::Added => rebuilt.extend(to.next().copied()),
                }
            }
            proptest::prop_assert_eq!(rebuilt, right.clone());
            proptest::prop_assert!(from.next().is_none());
        }
    }
}
