mod build;
mod reader;
mod speed;
mod tshark;
mod written;
