// Written by `scripts/tables.py` from `python/hubsub/columns.py`; `make fix` writes it again.

columns! {
    Hub = ("hub", int);
    Term = ("term", bigint);
    Offset = ("offset", bigint);
    Room = ("room", string);
    Epoch = ("epoch", bigint);
    Seq = ("seq", bigint);
    Topic = ("topic", string);
    Timestamp = ("timestamp", timestamp);
    Publisher = ("publisher", string);
    Device = ("device", string);
    Headers = ("headers", map);
    Payload = ("payload", binary);
}
