//! Suggestions for misspelt names.

/// The known name that is most similar to `name`, ignoring case, if one is similar enough.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    known
        .into_iter()
        .map(|known| {
            let distance = strsim::damerau_levenshtein(&name, &known.to_ascii_lowercase());
            (distance, known)
        })
        .min()
        .filter(|&(distance, known)| distance <= 1 + known.len().min(name.len()) / 5)
        .map(|(_, known)| known)
}
