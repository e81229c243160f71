mod captures;
mod generated;
mod path;
mod streams;
mod table;
mod tshark;
