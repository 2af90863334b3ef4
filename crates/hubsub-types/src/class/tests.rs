use super::*;

fn class(name: &str, matches: &[&str], room: &str) -> Class {
    let matches = matches.iter().map(|text| Matcher::parse(text).unwrap()).collect();
    Class { matches, room: Template::parse(room).unwrap(), ..Class::named(name) }
}

fn room(table: &ClassTable, topic: &str) -> String {
    String::from_utf8(table.room(topic.as_bytes()).into_owned()).unwrap()
}

fn class_of<'t>(table: &'t ClassTable, room: &str) -> &'t str {
    &table.get(table.class_of_room(room.as_bytes())).name
}

#[test]
fn a_room_has_the_first_class_that_matches_its_name() {
    let table = ClassTable::new(
        vec![class("vip", &["chat:vip*"], "topic"), class("chat", &["chat:*", "chat/#"], "topic")],
        true,
    );
    assert_eq!(class_of(&table, "chat:vip1"), "vip");
    assert_eq!(class_of(&table, "chat:1"), "chat");
    assert_eq!(class_of(&table, "chat/a/b"), "chat");
    assert_eq!(class_of(&table, "other"), "default");
}

#[test]
fn a_last_class_that_matches_all_is_the_default_class() {
    let table = ClassTable::new(vec![class("all", &[], "topic")], true);
    assert_eq!(table.classes().len(), 1);
    assert_eq!(class_of(&table, "x"), "all");
    let table = ClassTable::new(vec![class("all", &[], "+")], true);
    assert_eq!(table.classes().len(), 2);
}

#[test]
fn a_table_that_changes_keeps_the_index_of_each_class_whatever_their_order() {
    let before = ClassTable::new(vec![class("a", &["a:*"], "topic"), class("b", &["b:*"], "topic")], true);
    let given = vec![
        class("new", &["a:new*", "c:*"], "topic"),
        class("b", &["a:*"], "topic"),
        Class::named("default"),
    ];
    let after = before.changed(given);
    let index = |name| after.index_of(name).unwrap();
    assert_eq!((index("a"), index("b"), index("default"), index("new")), (0, 1, 2, 3));
    assert_eq!(class_of(&after, "a:new1"), "new");
    assert_eq!(class_of(&after, "a:1"), "b", "a is not in the order any more");
    assert_eq!(class_of(&after, "b:1"), "default");
    assert_eq!(before.get(0).name, after.get(0).name, "who has its index finds it");
    assert_ne!(before.rules(), after.rules());
}

#[test]
fn in_topics_that_begin_with_a_dollar_neither_tags_nor_users_templates_have_a_say() {
    let classes = vec![
        class("$stage", &["$stage/#"], "$stage/+/+"),
        class("$stats", &["$stats/#"], "topic"),
        class("all", &[], "+/+"),
    ];
    let table = ClassTable::new(classes, true);
    assert_eq!(room(&table, "$stage/q/a/{b}"), "$stage/q/a");
    assert_eq!(room(&table, "$stats/room/{x}/y"), "$stats/room/{x}/y");
    assert_eq!(class_of(&table, "$stats/room/{x}/y"), "$stats");
    assert_eq!(room(&table, "a/b/c"), "a/b");
}

#[test]
fn a_hash_tag_names_the_room_before_any_template_if_tags_are_on() {
    let classes = || vec![class("devices", &["devices/#"], "devices/+")];
    let table = ClassTable::new(classes(), true);
    assert_eq!(room(&table, "{lobby}.typing"), "lobby");
    assert_eq!(room(&table, "devices/{a}/b"), "a");
    assert_eq!(room(&table, "{}x"), "{}x");
    let table = ClassTable::new(classes(), false);
    assert_eq!(room(&table, "{lobby}.typing"), "{lobby}.typing");
    assert_eq!(room(&table, "devices/{a}/b"), "devices/{a}");
}

#[test]
fn the_first_matching_class_that_has_a_template_yields_the_room() {
    let table = ClassTable::new(
        vec![
            class("plain", &["devices/special/#"], "topic"),
            class("devices", &["devices/#"], "devices/+"),
            class("late", &["#"], "+"),
        ],
        true,
    );
    assert_eq!(room(&table, "devices/a/b/c"), "devices/a");
    assert_eq!(room(&table, "devices/special/b"), "devices/special");
    assert_eq!(room(&table, "devices"), "devices");
    assert_eq!(room(&table, "sensors/a"), "sensors");
    assert_eq!(room(&table, "$SYS/a"), "$SYS/a");
}

#[test]
fn a_template_whose_rooms_its_class_does_not_match_is_found() {
    for (matches, template) in [
        (&["devices/+/state"][..], "devices/+"),
        (&["devices/+/#"], "devices"),
        (&["devices/a/b", "devices/a/c"], "devices/+"),
        (&["+/x/#"], "+"),
        (&["devices/*/state"], "devices/+"),
        (&["dev*state"], "devices/+"),
        (&["devices/[ab]/?*"], "devices/+"),
        (&["*/state"], "+"),
        (&["devices/+/state", "devices/x/#"], "devices/+"),
    ] {
        let table = ClassTable::new(vec![class("c", matches, template)], true);
        let problems = table.check();
        assert_eq!(problems.len(), 1, "{matches:?} {template}");
        assert!(problems[0].hint.contains("class c"), "{}", problems[0]);
    }
}

#[test]
fn a_template_whose_rooms_its_class_matches_passes() {
    for (matches, template) in [
        (&["devices/#"][..], "devices/+"),
        (&["devices/*"], "devices/+"),
        (&["devices/+", "devices/+/state"], "devices/+"),
        (&["devices/+/state", "devices/*"], "devices/+"),
        (&["$SYS/#"], "$SYS/+"),
        (&["a/b"], "devices/+"),
        (&["#"], "+"),
        (&["dev*"], "devices/+"),
        (&[], "+/+"),
        (&["devices/+/state"], "topic"),
    ] {
        let problems = ClassTable::new(vec![class("c", matches, template)], true).check();
        assert_eq!(problems, [], "{matches:?} {template}");
    }
}
