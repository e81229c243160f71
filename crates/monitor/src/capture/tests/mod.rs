mod build;
mod reader;
mod speed;
