//! The page of a project in a package registry: a list of links to its files (PEP 503).

/// The address of the file of this name, as the page's link has it.
pub(crate) fn link(page: &str, file: &str) -> Option<String> {
    let links = page.split("href=").skip(1).filter_map(|rest| {
        let quote = rest.chars().next().filter(|first| matches!(first, '"' | '\''))?;
        let (address, _) = rest[1..].split_once(quote)?;
        Some(address.replace("&amp;", "&"))
    });
    let names_it = |address: &String| {
        let path = address.split(['#', '?']).next().unwrap_or_default();
        path.rsplit('/').next() == Some(file)
    };
    links.into_iter().find(names_it)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_of_a_page_is_found_by_the_name_of_its_file() {
        let page = r##"<!DOCTYPE html><body>
            <a href="../../p/a-1.whl#sha256=00" data-requires-python="&gt;=3">a-1.whl</a><br/>
            <a class=x href='https://h/a-2.whl?b=a-3.whl&amp;c=d#sha256=11'>a-2.whl</a>
            <a href="a-4.whl.metadata">a-4.whl</a> <a href=a-5.whl>a-5.whl</a> <a href="a-6.whl"##;
        let found = |file| link(page, file);
        assert_eq!(found("a-1.whl").as_deref(), Some("../../p/a-1.whl#sha256=00"));
        let second = "https://h/a-2.whl?b=a-3.whl&c=d#sha256=11";
        assert_eq!(found("a-2.whl").as_deref(), Some(second));
        for file in ["a-3.whl", "a-4.whl", "a-5.whl", "a-6.whl", "1.whl"] {
            assert_eq!(found(file), None, "{file}");
        }
    }
}
